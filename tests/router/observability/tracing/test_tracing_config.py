"""Settings of records and traces: what is wrong is named, and where spans go."""

from __future__ import annotations

from typing import Any

import pytest

from slipstream.router.config.router_config import RouterConfig, TracingConfig


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("otlp_endpoint", ""),
        ("otlp_endpoint", "collector:4318"),
        ("otlp_endpoint", "grpc://collector:4317"),
        ("otlp_endpoint", "http://"),
        ("otlp_endpoint", "http://[::1"),
        ("otlp_endpoint", "http://collector:99999"),
        ("sample_ratio", -0.1),
        ("sample_ratio", 1.5),
        ("sample_ratio", float("nan")),
        ("queue_requests", 0),
        ("timeout_s", 0.0),
        ("timeout_s", float("inf")),
    ],
)
def test_a_bad_value_is_an_error_that_names_the_key(key: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"^{key} must be"):
        TracingConfig(**{key: value})


@pytest.mark.parametrize("number", [0, -1, 100_001])
def test_the_history_is_bounded(number: int) -> None:
    with pytest.raises(ValueError, match=r"^history_requests must be"):
        RouterConfig(history_requests=number)


@pytest.mark.parametrize(
    ("endpoint", "url"),
    [
        (None, None),
        ("http://collector:4318", "http://collector:4318/v1/traces"),
        ("http://collector:4318/", "http://collector:4318/v1/traces"),
        ("https://host/otlp/v1/traces", "https://host/otlp/v1/traces"),
    ],
)
def test_a_base_url_gets_the_path_of_traces(endpoint: str | None, url: str | None) -> None:
    assert TracingConfig(endpoint).traces_url == url
