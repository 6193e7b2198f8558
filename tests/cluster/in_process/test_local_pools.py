"""Language models of a server within a program, while they are fetched."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from slipstream.cluster.in_process.language import local_pools
from slipstream.cluster.in_process.language.local_pools import LocalPools
from slipstream.cluster.in_process.language.worker_plan import WorkerContact
from slipstream.cluster.repository.downloads import Downloads
from slipstream.router.config.repository_config import RepositoryConfig
from slipstream.router.model_files.cache.version_download import DownloadFailed
from slipstream.router.process.addresses import Endpoint
from slipstream.router.status.wanted_models import WantedModel

TIMEOUT_S = 20.0


def test_a_stop_does_not_wait_for_a_download(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, goes_on = threading.Event(), threading.Event()

    def downloading(*given: Any) -> Any:
        """As much as is seen of a download: it shows its progress, again and again."""
        files = given[-1]
        assert isinstance(files, Downloads)
        show = files._show()
        show("1 of 2 files")
        begun.set()
        assert goes_on.wait(TIMEOUT_S)
        show("2 of 2 files")

    async def scenario() -> None:
        router: Any = None  # which is asked once the files are there
        pools = LocalPools(router, RepositoryConfig(), WorkerContact(Endpoint("127.0.0.1", 1), ""), tmp_path)
        adding = asyncio.create_task(pools.add(WantedModel("chat", "s3://models/chat")))
        await asyncio.to_thread(begun.wait, TIMEOUT_S)
        await pools.stop()
        goes_on.set()
        with pytest.raises(DownloadFailed):
            await adding

    monkeypatch.setattr(local_pools, "worker_plan", downloading)
    asyncio.run(scenario())
