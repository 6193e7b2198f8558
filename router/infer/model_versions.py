"""The versions of one model: which of them serve, what came of the last load, and what the index shows."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from slipstream.router.tensors.infer_error import InferError, InferErrorCode
from slipstream.router.tensors.infer_service import IndexEntry
from slipstream.router.tensors.model_spec import ModelPhase

UNLOADED = "unloaded"
MAX_VERSION_DIGITS = 19  # of a number of 64 bits
Runtime = TypeVar("Runtime")


@dataclass(slots=True)
class VersionState:
    phase: ModelPhase
    reason: str = ""

    @property
    def has_failed(self) -> bool:
        return self.phase is ModelPhase.UNAVAILABLE and self.reason != UNLOADED


class ModelVersions(Generic[Runtime]):
    """A load replaces all versions at once, or none: while it runs, and if it fails, the versions before it serve."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._states: dict[str, VersionState] = {}
        self._serving: dict[str, Runtime] = {}  # READY; by version
        self._highest = ""  # of them
        self._leaving: set[Runtime] = set()

    @property
    def is_loading(self) -> bool:
        return any(state.phase is ModelPhase.LOADING for state in self._states.values())

    @property
    def is_empty(self) -> bool:
        """It was to be loaded, and no version could be tried."""
        return not self._states

    @property
    def has_failed(self) -> bool:
        return self.is_empty or any(state.has_failed for state in self._states.values())

    @property
    def serving(self) -> Mapping[str, Runtime]:
        return self._serving

    @property
    def leaving(self) -> Collection[Runtime]:
        """Those that end their requests."""
        return self._leaving

    @property
    def is_idle(self) -> bool:
        """Nothing of it is left running."""
        return not self._serving and not self._leaving and not self.is_loading

    def begin_load(self, versions: Iterable[str]) -> None:
        for version in versions:
            if version not in self._serving:
                self._states[version] = VersionState(ModelPhase.LOADING)

    def fail_load(self, versions: Iterable[str], causes: Mapping[str, str]) -> None:
        """`causes` are those of the versions that could not be loaded; the others are given up with them."""
        for version in versions:
            if version not in self._serving:
                self._states[version] = VersionState(ModelPhase.UNAVAILABLE, causes.get(version, UNLOADED))

    def serve(self, loaded: Mapping[str, Runtime]) -> list[Runtime]:
        """The load has succeeded: these versions serve from now on. Returns those before that are to be unloaded, which
        are all that are not among them."""
        leaving = self._leave(
            {version for version, runtime in self._serving.items() if loaded.get(version) is not runtime}
        )
        self._serving = dict(loaded)
        self._highest = highest(self._serving)
        for version in loaded:
            self._states[version] = VersionState(ModelPhase.READY)
        return leaving

    def unload(self) -> list[Runtime]:
        """Nothing serves from now on, and no load counts as failed. Returns what is to be unloaded."""
        for state in self._states.values():
            if state.has_failed:
                state.reason = UNLOADED
        return self._leave(set(self._serving))

    def note_unloaded(self, versions: Iterable[str]) -> None:
        """A router before has unloaded these versions."""
        for version in versions:
            self._states.setdefault(version, VersionState(ModelPhase.UNAVAILABLE, UNLOADED))

    def ended(self, version: str, runtime: Runtime) -> None:
        """A version that was unloaded has ended."""
        self._leaving.discard(runtime)
        if self._serving.get(version) is runtime:
            del self._serving[version]
            self._highest = highest(self._serving)
        state = self._states.get(version)
        if state is not None and state.phase is ModelPhase.UNLOADING:
            self._states[version] = VersionState(ModelPhase.UNAVAILABLE, UNLOADED)

    def find(self, version: str = "") -> Runtime:
        """The version that serves a request; "": the highest. Raises InferError as Triton does."""
        found = self._serving.get(version or self._highest)
        if found is not None:
            return found
        if not version:
            raise unknown(f"'{self.name}' has no available versions")
        if version in self._states:
            message = f"Request for unknown model: '{self.name}' version {version} is not at ready state"
            raise InferError(message, InferErrorCode.UNAVAILABLE)
        raise unknown(f"'{self.name}' version {version} is not found")

    def entries(self, *, only_ready: bool = False) -> list[IndexEntry]:
        """Of the index, lowest version first."""
        return [
            IndexEntry(self.name, version, state.phase, state.reason)
            for version, state in sorted(self._states.items(), key=lambda item: int(item[0]))
            if state.phase is ModelPhase.READY or not only_ready
        ]

    def _leave(self, versions: set[str]) -> list[Runtime]:
        leaving = []
        for version in sorted(versions, key=int):
            leaving.append(self._serving.pop(version))
            self._states[version] = VersionState(ModelPhase.UNLOADING)
        self._leaving.update(leaving)
        self._highest = highest(self._serving)
        return leaving


def highest(versions: Iterable[str]) -> str:
    """The highest of some versions; "" if there are none."""
    return max(versions, key=int, default="")


def unknown(what: str) -> InferError:
    return InferError(f"Request for unknown model: {what}", InferErrorCode.NOT_FOUND)


def version_of(text: str) -> str:
    """A version as clients name it, "" for the highest one. Raises InferError."""
    if not text or text == "-1":
        return ""
    if not (text.isascii() and text.isdigit() and len(text) <= MAX_VERSION_DIGITS):
        message = (
            f"failed to get model version from specified version string '{text}' (details: stol), version should be an "
            "integral value > 0"
        )
        raise InferError(message, InferErrorCode.INVALID_ARG)
    return str(int(text))
