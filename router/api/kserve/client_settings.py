"""What clients have set at runtime, on disk for the next router: regions of shared memory, logging, traces."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from slipstream.router.api.kserve.kserve_server import KServeServer
from slipstream.router.model_repository.explicit_loads import check_own
from slipstream.router.tensors.infer_error import InferError

FILE_NAME = "client.settings"

log = logging.getLogger(__name__)


class ClientSettings:
    """`folder` is made when it is needed; only this user may be able to write to it. `keep` restores what the router
    before has noted, and notes every change from then on. The small file is written before the client is answered,
    on the event loop: only administrators change settings, and seldom. If it cannot be written, that is logged, and the
    setting counts all the same."""

    def __init__(self, folder: Path, server: KServeServer) -> None:
        self._folder = folder
        self._regions, self._logs, self._traces = server.client_regions, server.logs, server.traces

    def keep(self) -> None:
        self._restore(self._noted())
        for control in (self._regions, self._logs, self._traces):
            control.on_change = self._note

    def _restore(self, noted: Mapping[str, Any]) -> None:
        for region in noted.get("regions", ()):
            try:
                self._regions.register(**region)
            except InferError as error:  # its owner has removed the file
                log.warning("a region of shared memory is gone: %s", error.message)
        if noted.get("logging"):
            self._logs.update(noted["logging"])
        for model, settings in noted.get("traces", {}).items():
            try:
                self._traces.update(settings, model)
            except InferError as error:  # the server has another configuration now
                log.warning("trace settings of clients are not restored: %s", error.message)

    def _noted(self) -> dict[str, Any]:
        if not self._folder.exists():
            return {}
        try:
            check_own(self._folder)
            noted: dict[str, Any] = json.loads((self._folder / FILE_NAME).read_bytes())
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            log.warning("what clients have set before is not restored: %s", error)
            return {}
        return noted

    def _note(self) -> None:
        regions = [
            {"name": region.name, "key": region.key, "offset": region.offset, "byte_size": region.byte_size}
            for region in self._regions.status()
        ]
        noted = {"regions": regions, "logging": self._logs.changes(), "traces": self._traces.changes()}
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            check_own(self._folder)
            part = self._folder / f"{FILE_NAME}.part"
            part.write_text(json.dumps(noted), "utf-8")
            os.replace(part, self._folder / FILE_NAME)
        except OSError as error:
            log.warning("the next router will not know what clients have set: %s", error)
