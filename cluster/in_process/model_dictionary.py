"""The models of a server, as a program looks them up."""

from __future__ import annotations

from collections.abc import Iterable

from slipstream.cluster.in_process.model import Model
from slipstream.cluster.in_process.requests.infer_request import ANY_VERSION
from slipstream.cluster.in_process.running.running_server import ServerHandle
from slipstream.router.tensors.infer_service import IndexEntry


class ModelDictionary(dict[tuple[str, int], Model]):
    """The index of the repository by name and version; -1 is the version of a model that was never loaded. A name alone
    finds the model with whichever version is ready."""

    def __init__(self, server: ServerHandle, entries: Iterable[IndexEntry]) -> None:
        super().__init__()
        for entry in entries:
            version = int(entry.version) if entry.version else ANY_VERSION
            state = None if entry.phase is None else entry.phase.value
            self[entry.name, version] = Model(server, entry.name, version, state, entry.reason or None)
        self._server = server
        self._names = {name for name, _ in self}

    def __getitem__(self, key: tuple[str, int] | str) -> Model:
        """Raises KeyError."""
        if isinstance(key, tuple):
            if key in self:
                return super().__getitem__(key)
        elif key in self._names:
            return Model(self._server, key)
        raise KeyError(f"Unknown Model: {key}")
