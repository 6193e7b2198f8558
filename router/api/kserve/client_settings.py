"""What clients have set at runtime, on disk for the next router: regions of shared memory, logging, traces."""

from __future__ import annotations

import asyncio
import json
import logging
import os
from pathlib import Path
from typing import Any

from slipstream.router.api.kserve.log_control import LogControl
from slipstream.router.api.kserve.trace_control import TraceControl
from slipstream.router.model_repository.explicit_loads import check_own
from slipstream.router.tensor_memory.client_regions import ClientRegions
from slipstream.router.tensors.infer_error import InferError

FILE_NAME = "client.settings"

log = logging.getLogger(__name__)


class ClientSettings:
    """`folder` is made when it is needed; only this user may be able to write to it. `restore` does again what the
    router before has kept. If the file cannot be written, that is logged, and the setting counts all the same."""

    def __init__(self, folder: Path, regions: ClientRegions, traces: TraceControl, logs: LogControl) -> None:
        self._folder = folder
        self._regions, self._traces, self._logs = regions, traces, logs
        self._turn = asyncio.Lock()
        self._writings: set[asyncio.Task[None]] = set()

    async def keep(self) -> None:
        """Returns when the file has what holds now. It is written by a thread, one change after the other, and also
        where the client that has made the change leaves meanwhile."""
        writing = asyncio.create_task(self._write_in_turn())
        self._writings.add(writing)
        writing.add_done_callback(self._writings.discard)
        await asyncio.shield(writing)

    async def close(self) -> None:
        """Returns when all is written."""
        await asyncio.gather(*self._writings)

    async def _write_in_turn(self) -> None:
        async with self._turn:
            await asyncio.to_thread(self._write, self._settings())

    def restore(self) -> None:
        """Blocks."""
        kept = self._kept()
        for region in kept.get("regions", ()):
            try:
                self._regions.register(**region)
            except InferError as error:  # its owner has removed the file
                log.warning("a region of shared memory is gone: %s", error.message)
        if kept.get("logging"):
            self._logs.update(kept["logging"])
        for model, settings in kept.get("traces", {}).items():
            try:
                self._traces.update(settings, model)
            except InferError as error:  # the server has another configuration now
                log.warning("trace settings of clients are not restored: %s", error.message)

    def _kept(self) -> dict[str, Any]:
        if not self._folder.exists():
            return {}
        try:
            check_own(self._folder)
            kept: dict[str, Any] = json.loads((self._folder / FILE_NAME).read_bytes())
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            log.warning("what clients have set before is not restored: %s", error)
            return {}
        return kept

    def _settings(self) -> dict[str, Any]:
        """As they are now."""
        regions = [
            {"name": region.name, "key": region.key, "offset": region.offset, "byte_size": region.byte_size}
            for region in self._regions.status()
        ]
        return {"regions": regions, "logging": self._logs.changes(), "traces": self._traces.changes()}

    def _write(self, settings: dict[str, Any]) -> None:
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            check_own(self._folder)
            part = self._folder / f"{FILE_NAME}.part"
            part.write_text(json.dumps(settings), "utf-8")
            os.replace(part, self._folder / FILE_NAME)
        except OSError as error:
            log.warning("the next router will not know what clients have set: %s", error)
