"""Against Ray's own names: a hook that sets one that Ray no longer has does nothing, without an error."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from ray._private import ray_constants, services, utils

from slipstream.cluster.ray import ray_start_hook

HOOKED = (
    (services, "start_api_server"),
    (services, "_build_python_executable_command_memory_profileable"),
    (utils, "get_dashboard_dependency_error"),
)


@pytest.fixture
def hooked(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    for module, name in HOOKED:
        monkeypatch.setattr(module, name, getattr(module, name))  # raises if Ray has none, and puts it back
    params = SimpleNamespace(ray_client_server_port=15_000)
    ray_start_hook.leave_out(params, is_head=True)
    return params


def test_there_is_no_server_for_thin_clients(hooked: SimpleNamespace) -> None:
    assert hooked.ray_client_server_port is None


def test_the_dashboard_says_that_it_was_not_started(hooked: SimpleNamespace) -> None:
    assert services.start_api_server(True, "127.0.0.1", object()) == ("", None)


@pytest.mark.usefixtures("hooked")
def test_only_the_agent_is_started_by_our_module() -> None:
    build = services._build_python_executable_command_memory_profileable
    agent = build(ray_constants.PROCESS_TYPE_DASHBOARD_AGENT, "/session")
    assert agent[-2:] == ["-m", ray_start_hook.AGENT_MODULE]
    assert "-m" not in build(ray_constants.PROCESS_TYPE_LOG_MONITOR, "/session")
