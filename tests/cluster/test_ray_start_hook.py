from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import ray
from ray._private import services

from slipstream.cluster import ray_start_hook

CONSTRAINTS = Path(__file__).resolve().parents[2] / "constraints.txt"


def test_the_hook_has_been_tried_with_the_version_that_is_installed() -> None:
    pinned = re.search(r"^ray==(\S+)", CONSTRAINTS.read_text(), re.MULTILINE)
    assert pinned is not None
    assert pinned[1].startswith(ray_start_hook.TRIED_VERSIONS)


def test_another_version_of_ray_is_left_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray, "__version__", "2.99.0")
    params = SimpleNamespace(ray_client_server_port=15_000)
    start_api_server = services.start_api_server
    ray_start_hook.leave_out(params, is_head=True)
    assert params.ray_client_server_port == 15_000
    assert services.start_api_server is start_api_server
