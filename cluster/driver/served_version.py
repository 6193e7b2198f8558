"""The version of the model that a driver serves: its files, read while Ray starts, and its name."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future

from slipstream.cluster.config.cluster_config import ClusterConfig
from slipstream.cluster.driver.stop_order import unless
from slipstream.cluster.repository.model_content import ModelContent, content_of, unused_name
from slipstream.cluster.state.run_state import ClusterState
from slipstream.cluster.supervisor.supervisor import StartFailed
from slipstream.cluster.terminal.console import Console


class ServedVersion:
    def __init__(self, config: ClusterConfig, state: ClusterState, console: Console) -> None:
        self._config = config
        self._state = state
        self._console = console
        self._content: Future[ModelContent] = Future()

    def start_reading(self) -> None:
        """Large files take seconds when they are new. The end of the driver does not wait for the thread."""
        threading.Thread(target=self._read, name="model-files", daemon=True).start()

    def _read(self) -> None:
        try:
            self._content.set_result(content_of(self._config))
        except (OSError, ValueError) as error:
            self._content.set_exception(StartFailed(f"model.path: {error}"))

    async def content_unless(self, stop: asyncio.Event) -> ModelContent | None:
        """The content of the model's files; None if `stop` comes before they are read. Raises StartFailed."""
        if not self._content.done():
            self._console.pending("reading the model's files, to name its version")
        reading: asyncio.Future[ModelContent] = asyncio.wrap_future(self._content)
        return reading.result() if await unless(stop, reading) else None

    def name(self, content: ModelContent) -> None:
        """Names the version in the state. What the previous driver served keeps its name, because answers continue only
        within a version. If the files have been replaced, no worker has the old ones any more, and the new ones are
        served under another name."""
        state = self._state
        if state.content == content.digest:
            return
        version = unused_name(content.name, state.names)
        if state.content:
            self._console.event(
                f"the files in {self._config.model.path} are not those of version {state.version}, which served "
                f"before; they are served as version {version}"
            )
        state.version, state.content = version, content.digest
        state.names.append(version)
