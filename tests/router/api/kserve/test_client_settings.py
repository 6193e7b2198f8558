"""What clients have set at runtime, as the next router finds it."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from slipstream.router.api.kserve.client_settings import FILE_NAME, ClientSettings
from slipstream.router.api.kserve.kserve_server import KServeServer
from slipstream.router.api.kserve.log_control import LOG_NAME, LogControl
from slipstream.router.api.kserve.trace_control import TraceControl
from slipstream.router.tensor_memory.client_regions import ClientRegions
from tests.support.router.fake_tensor_service import fake_models
from tests.support.router.in_loop import in_loop
from tests.support.router.until import until


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
    regions, logs = ClientRegions(shm), LogControl()
    settings = ClientSettings(folder / "kept", regions, traces, logs)
    settings.restore()
    return KServeServer(models, models, regions, traces, logs, settings.keep)


@in_loop
async def test_the_next_router_has_the_regions_that_clients_have_registered(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    server = next_server(tmp_path)
    regions = server.client_regions
    for name in ("kept", "gone", "unregistered"):
        (tmp_path / "shm" / name).write_bytes(b"12345678")
        regions.register(name, f"/{name}", 4, 4)
    regions.unregister("unregistered")
    await server.keep_settings()
    (tmp_path / "shm" / "gone").unlink()
    regions = next_server(tmp_path).client_regions
    assert [(one.name, one.key, one.offset, one.byte_size) for one in regions.status()] == [("kept", "/kept", 4, 4)]
    assert bytes(regions.slice_of("kept", 0, 4).view) == b"5678"
    assert "Unable to open shared memory region: '/gone'" in caplog.text


@in_loop
async def test_the_next_router_has_the_settings_of_logs_and_traces(tmp_path: Path) -> None:
    server = next_server(tmp_path)
    server.logs.update({"log_verbose_level": 1})
    server.traces.update({"trace_rate": "7", "trace_level": ["TIMESTAMPS"]})
    server.traces.update({"trace_level": ["OFF"], "trace_count": "3"}, "add_sub")
    await server.keep_settings()
    restored = next_server(tmp_path)
    assert restored.logs.shown() == server.logs.shown()
    assert restored.traces.shown() == server.traces.shown()
    assert restored.traces.shown("add_sub") == server.traces.shown("add_sub")
    restored.traces.update({"trace_rate": None, "trace_level": None})
    assert restored.traces.active().rate == 1000, "None is what it was at the start"


@in_loop
async def test_settings_that_no_client_has_changed_are_those_of_the_configuration(tmp_path: Path) -> None:
    await next_server(tmp_path).keep_settings()
    assert kept(tmp_path) == {"regions": [], "logging": {}, "traces": {}}


@in_loop
async def test_changes_are_written_beside_the_loop_one_after_the_other_and_the_last_one_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    goes_on, threads, replace = threading.Event(), [], os.replace

    def slowly(part: Path, path: Path) -> None:
        threads.append(threading.current_thread())
        goes_on.wait(30.0)
        replace(part, path)

    monkeypatch.setattr("slipstream.router.api.kserve.client_settings.os.replace", slowly)
    server = next_server(tmp_path)
    clients = []
    for level in range(1, 6):
        server.logs.update({"log_verbose_level": level})
        clients.append(asyncio.create_task(server.keep_settings()))
        await asyncio.sleep(0)
        await until(lambda: len(threads) == 1)  # the loop goes on, and one is written at a time
    for client in clients[1:]:
        client.cancel()  # it leaves before its change is written
    await asyncio.sleep(0)
    goes_on.set()
    await asyncio.gather(*clients, return_exceptions=True)
    await until(lambda: kept(tmp_path)["logging"]["log_verbose_level"] == 5)
    assert threading.main_thread() not in threads


@in_loop
async def test_the_end_waits_until_all_is_written(tmp_path: Path) -> None:
    logs = LogControl()
    settings = ClientSettings(tmp_path / "kept", ClientRegions(tmp_path), TraceControl(), logs)
    logs.update({"log_verbose_level": 3})
    leaves = asyncio.create_task(settings.keep())
    await asyncio.sleep(0)
    leaves.cancel()
    await settings.close()
    assert kept(tmp_path)["logging"]["log_verbose_level"] == 3


def kept(folder: Path) -> dict[str, Any]:
    settings: dict[str, Any] = json.loads((folder / "kept" / FILE_NAME).read_bytes())
    return settings


def test_a_file_that_cannot_be_read_is_passed_over(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "kept").mkdir(mode=0o700)
    (tmp_path / "kept" / FILE_NAME).write_text("not JSON")
    assert next_server(tmp_path).client_regions.status() == []
    assert "what clients have set before is not restored" in caplog.text


@in_loop
async def test_a_setting_counts_although_it_cannot_be_noted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "kept").touch()
    server = next_server(tmp_path)
    server.logs.update({"log_info": False})
    await server.keep_settings()
    assert not server.logs.active.info
    assert "the next router will not know what clients have set" in caplog.text
