"""What clients have set at runtime, as the next router finds it."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from slipstream.router.api.kserve.client_settings import FILE_NAME, ClientSettings
from slipstream.router.api.kserve.kserve_server import KServeServer
from slipstream.router.api.kserve.log_control import LOG_NAME, LogControl
from slipstream.router.api.kserve.trace_control import TraceControl
from slipstream.router.tensor_memory.client_regions import ClientRegions
from tests.support.router.fake_tensor_service import fake_models


@pytest.fixture(autouse=True)
def log_level() -> Iterator[None]:
    """Log settings hold for the whole process."""
    logger = logging.getLogger(LOG_NAME)
    level = logger.level
    yield
    logger.setLevel(level)


def next_server(folder: Path) -> KServeServer:
    """The server of the next router, with the settings that clients of those before have made."""
    models = fake_models()
    shm = folder / "shm"
    shm.mkdir(exist_ok=True)
    traces = TraceControl.of_settings({"trace_file": "t.json"})
    server = KServeServer(models, models, ClientRegions(shm), traces, LogControl())
    ClientSettings(folder / "kept", server).keep()
    return server


def test_the_next_router_has_the_regions_that_clients_have_registered(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    regions = next_server(tmp_path).client_regions
    for name in ("kept", "gone", "unregistered"):
        (tmp_path / "shm" / name).write_bytes(b"12345678")
        regions.register(name, f"/{name}", 4, 4)
    regions.unregister("unregistered")
    (tmp_path / "shm" / "gone").unlink()
    regions = next_server(tmp_path).client_regions
    assert [(one.name, one.key, one.offset, one.byte_size) for one in regions.status()] == [("kept", "/kept", 4, 4)]
    assert bytes(regions.slice_of("kept", 0, 4).view) == b"5678"
    assert "Unable to open shared memory region: '/gone'" in caplog.text


def test_the_next_router_has_the_settings_of_logs_and_traces(tmp_path: Path) -> None:
    server = next_server(tmp_path)
    server.logs.update({"log_verbose_level": 1})
    server.traces.update({"trace_rate": "7", "trace_level": ["TIMESTAMPS"]})
    server.traces.update({"trace_level": ["OFF"], "trace_count": "3"}, "add_sub")
    restored = next_server(tmp_path)
    assert restored.logs.shown() == server.logs.shown()
    assert restored.traces.shown() == server.traces.shown()
    assert restored.traces.shown("add_sub") == server.traces.shown("add_sub")
    restored.traces.update({"trace_rate": None, "trace_level": None})
    assert restored.traces.active().rate == 1000, "None is what it was at the start"


def test_settings_that_no_client_has_changed_are_those_of_the_configuration(tmp_path: Path) -> None:
    next_server(tmp_path).client_regions.unregister()
    noted = json.loads((tmp_path / "kept" / FILE_NAME).read_bytes())
    assert noted == {"regions": [], "logging": {}, "traces": {}}


def test_a_file_that_cannot_be_read_is_passed_over(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "kept").mkdir(mode=0o700)
    (tmp_path / "kept" / FILE_NAME).write_text("not JSON")
    assert next_server(tmp_path).client_regions.status() == []
    assert "what clients have set before is not restored" in caplog.text


def test_a_setting_counts_although_it_cannot_be_noted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "kept").touch()
    server = next_server(tmp_path)
    server.logs.update({"log_info": False})
    assert not server.logs.active.info
    assert "the next router will not know what clients have set" in caplog.text
