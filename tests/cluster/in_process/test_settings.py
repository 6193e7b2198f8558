"""Options of a program as settings of the router."""

from __future__ import annotations

from typing import Any

import pytest

import slipstream
from slipstream.cluster.in_process.settings import repository_config


def test_options_have_the_meaning_of_the_flags_of_the_same_name() -> None:
    options = slipstream.Options(
        model_repository=["/a", "s3://b/c"],
        server_id="mine",
        model_control_mode=slipstream.ModelControlMode.EXPLICIT,
        startup_models=["x"],
        strict_model_config=True,
        rate_limiter_mode=slipstream.RateLimitMode.EXEC_COUNT,
        rate_limiter_resources=[slipstream.RateLimiterResource("r", 2, 0)],
        cache_config={"local": {"size": 1 << 20}},
        exit_on_error=False,
        metrics_interval=500,
        metrics_configuration={"": {"summary_latencies": "true"}},
        backend_configuration={"python": {"python-runtime": "/usr/bin/python3"}},
    )
    config = repository_config(options)
    assert (config.paths, config.control_mode, config.load_models) == (("/a", "s3://b/c"), "explicit", ("x",))
    assert (config.server_id, config.auto_complete, config.exit_on_error) == ("mine", False, False)
    assert (config.rate_limit, config.rate_limit_resources[0].count) == ("execution_count", 2)
    assert (config.cache_bytes, config.metrics.interval_s, config.metrics.summary_latencies) == (1 << 20, 0.5, True)
    assert config.backend_config == {"python": {"python-runtime": "/usr/bin/python3"}}


def test_nothing_listens_for_clients() -> None:
    config = repository_config(slipstream.Options(model_repository="/a"))
    assert (config.http.enabled, config.grpc.port, config.metrics.port) == (False, None, None)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"model_repository": None}, slipstream.InvalidArgumentError),
        ({}, slipstream.InvalidArgumentError),
        ({"model_repository": 1}, TypeError),
        ({"model_repository": "/a", "server_id": 1}, TypeError),
        ({"model_repository": "/a", "model_namespacing": True}, slipstream.UnsupportedError),
        ({"model_repository": "/a", "model_load_thread_count": 0}, slipstream.InvalidArgumentError),
        ({"model_repository": "/a", "cache_config": {"redis": {"host": "x"}}}, slipstream.InvalidArgumentError),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        repository_config(slipstream.Options(**options))
