"""The version of each model that a driver serves: its files, read while Ray starts, and its name."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future

from slipstream.cluster.config.cluster_config import ClusterConfig
from slipstream.cluster.driver.stop_order import unless
from slipstream.cluster.models.version_name import name_version
from slipstream.cluster.repository.model_content import ModelContent, content_of
from slipstream.cluster.state.cluster_state import ClusterState
from slipstream.cluster.supervisor.supervisor import StartFailed
from slipstream.cluster.terminal.console import Console


class ServedVersions:
    def __init__(self, config: ClusterConfig, state: ClusterState, console: Console) -> None:
        self._config = config
        self._state = state
        self._console = console
        self._contents: Future[dict[str, ModelContent]] = Future()

    def start_reading(self) -> None:
        """Large files take seconds when they are new. The end of the driver does not wait for the thread."""
        threading.Thread(target=self._read, name="model-files", daemon=True).start()

    def _read(self) -> None:
        contents: dict[str, ModelContent] = {}
        for alone in self._config.each():
            try:
                contents[alone.model.name] = content_of(alone)
            except (OSError, ValueError) as error:
                which = f"models: {alone.model.name}: " if self._config.models else "model."
                self._contents.set_exception(StartFailed(f"{which}path: {error}"))
                return
        self._contents.set_result(contents)

    async def contents_unless(self, stop: asyncio.Event) -> dict[str, ModelContent] | None:
        """The content of each model's files; None if `stop` comes before they are read. Raises StartFailed."""
        if not self._contents.done():
            self._console.pending("reading the model's files, to name its version")
        reading: asyncio.Future[dict[str, ModelContent]] = asyncio.wrap_future(self._contents)
        return reading.result() if await unless(stop, reading) else None

    def name(self, contents: dict[str, ModelContent]) -> None:
        """Names the version of each model in the state."""
        for alone in self._config.each():
            model = self._state.of_model(alone.model.name)
            remark = name_version(model, contents[alone.model.name], alone.model.path)
            if remark is not None:
                self._console.event(remark)
