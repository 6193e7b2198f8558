"""What becomes of a worker whose model cannot be loaded."""

from __future__ import annotations

import pytest

from slipstream.workers.config.worker_config import EngineConfig, WorkerConfig
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


def test_a_logits_processor_that_cannot_be_imported_ends_the_start_with_its_key() -> None:
    engine = EngineConfig(logits_processors={"good": "math:sqrt", "bad": "no_such_module:function"})
    worker = Worker(WorkerConfig("a", "decode", "m", "/nowhere", "127.0.0.1", 1, engine=engine))
    with pytest.raises(WorkerFailed, match=r"^engine\.logits_processors\.bad: cannot import 'no_such_module:function'"):
        worker.run()
