"""Serves the batches of a store (see `JobRunner`). The claim on one is a lock on a file of the batch
(`ResultFiles.claim`)."""

from __future__ import annotations

from collections import Counter

from slipstream.router.api.openai.batches.batch import KIND, Batch
from slipstream.router.api.openai.batches.batch_run import BatchRun
from slipstream.router.api.openai.batches.line_server import LineServer
from slipstream.router.config.batches_config import BatchesConfig
from slipstream.router.store.job_runner import JobRunner
from slipstream.router.store.object_store import ObjectStore
from slipstream.router.store.stored_object import StoredObject

LOOK_EVERY_S = 2.0  # for batches that other processes created, or were serving when they died


class BatchRunner(JobRunner[BatchRun]):
    """Life cycle: `start`, then `look` and `changed`, then `stop`."""

    def __init__(self, store: ObjectStore, lines: LineServer, config: BatchesConfig, counts: Counter[str]) -> None:
        def run_of(stored: StoredObject) -> BatchRun:
            return BatchRun(store, lines, config, Batch.of(stored), counts)

        super().__init__(store, KIND, run_of, config.max_running, LOOK_EVERY_S)

    def changed(self, batch_id: str) -> None:
        """A batch was changed in the store: if it runs here, it looks at once."""
        run = self.running(batch_id)
        if run is not None:
            run.look()
