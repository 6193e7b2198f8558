"""What becomes of a worker whose model cannot be loaded."""

from __future__ import annotations

import pytest

from slipstream.workers.config.worker_config import WorkerConfig
from slipstream.workers.telemetry.worker_report import WorkerFailed
from slipstream.workers.worker import Worker


@pytest.mark.parametrize("leaving", [SystemExit(3), KeyboardInterrupt("3"), GeneratorExit("3")])
def test_code_of_a_model_that_ends_its_thread_ends_the_worker_with_a_reason(
    leaving: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    def leaves(self: Worker, link: object) -> None:
        raise leaving

    monkeypatch.setattr(Worker, "_live", leaves)
    worker = Worker(WorkerConfig("a", "decode", "m", "/nowhere", "127.0.0.1", 1))
    with pytest.raises(WorkerFailed, match=f"^{type(leaving).__name__}: 3$"):
        worker.run()
    assert worker.report().state == "failed"
