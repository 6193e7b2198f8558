"""Worker processes of a language model that end by themselves."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from slipstream.cluster.in_process.language import worker_group
from slipstream.cluster.in_process.language.worker_group import WorkerGroup
from slipstream.workers.config.worker_config import WorkerConfig
from tests.support.router.until import until

TIMEOUT_S = 20.0


@pytest.fixture(autouse=True)
def failing_program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_group, "MODULE", "tests.support.cluster.failing_worker")
    monkeypatch.chdir(Path(__file__).resolve().parents[3])


@asynccontextmanager
async def workers(folder: Path) -> AsyncIterator[WorkerGroup]:
    group = WorkerGroup((WorkerConfig("chat/decode-0", "decode", "chat", "/nowhere", "127.0.0.1", 1),), folder)
    group.start()
    try:
        yield group
    finally:
        await group.stop(0.0)


def test_a_worker_that_never_comes_up_says_why(tmp_path: Path) -> None:
    async def reason() -> str:
        async with workers(tmp_path) as group, asyncio.timeout(TIMEOUT_S):
            return await group.failed

    assert asyncio.run(reason()) == "worker chat/decode-0: no room for chat/decode-0"


def test_a_worker_that_has_served_is_started_again(tmp_path: Path) -> None:
    async def is_still_tried() -> bool:
        async with workers(tmp_path) as group:
            group.served()
            await until(lambda: (tmp_path / "decode-0.log").read_text().count("no room") >= 2)
            return not group.failed.done()

    assert asyncio.run(is_still_tried())


def test_a_worker_that_cannot_be_started_again_at_first_is_tried_further(tmp_path: Path) -> None:
    folder = tmp_path / "workers"
    folder.mkdir()

    async def comes_back() -> bool:
        async with workers(folder) as group:
            group.served()
            shutil.rmtree(folder)
            await until(lambda: group._policies["chat/decode-0"].restarts >= 2)
            folder.mkdir()
            await until((folder / "decode-0.log").exists)
            return not group.failed.done()

    assert asyncio.run(comes_back())
