"""The state file of a running cluster, on its driver's machine: one JSON file per cluster, in the run folder.

The driver writes it; `slipstream status` and `slipstream down` read it, and so does the next driver of the same
guardian. A file whose guardian is gone (same pid *and* same start time) is stale.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from functools import cache
from pathlib import Path

from pydantic import TypeAdapter, ValidationError
from pydantic_core import PydanticSerializationError

from slipstream.cluster.state.cluster_state import ClusterState

SOON_S = 0.05
AGAIN_S = 5.0  # after which a file that could not be written is tried again


@cache
def _form() -> TypeAdapter[ClusterState]:
    """The file's format. It is cached, because it takes milliseconds to make; reading a thousand members takes 2 ms."""
    return TypeAdapter(ClusterState)


def _as_json(state: ClusterState) -> bytes:
    """The state as JSON. Bytes that are not text become question marks, because a path may contain any bytes."""
    try:
        return _form().dump_json(state, indent=1)
    except PydanticSerializationError:
        return json.dumps(asdict(state), indent=1, ensure_ascii=False).encode("utf-8", "replace")


def write(path: Path, state: ClusterState) -> None:
    """Replaces the file atomically. Raises OSError (the disk is full), and then the old file stays."""
    temporary = path.with_name(f".{path.name}.new")  # only the driver writes
    try:
        temporary.touch(mode=0o600)  # it holds the operator's token
        temporary.write_bytes(_as_json(state))
        os.replace(temporary, path)
    except OSError:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise


class StateFile:
    """The state file of the cluster whose driver runs on this event loop. If it cannot be written, that is no reason to
    end a stream: `warn` is called, once."""

    def __init__(self, path: Path, state: ClusterState, warn: Callable[[str], None]) -> None:
        self.path = path
        self.state = state
        self._warn = warn
        self._is_behind = False
        self._timer: asyncio.TimerHandle | None = None

    def write(self) -> None:
        """Writes the file at once."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        try:
            write(self.path, self.state)
        except OSError as error:
            self._failed(error)
            return
        if self._is_behind:
            self._is_behind = False
            self._warn(f"{self.path} could be written again")

    def write_soon(self) -> None:
        """Writes the file once for all changes within `SOON_S`. While a thousand members start, each of them changes
        all the time, and the file contains them all."""
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(SOON_S, self.write)

    def _failed(self, error: OSError) -> None:
        if not self._is_behind:
            self._is_behind = True
            self._warn(
                f"warning: {self.path} cannot be written: {error.strerror or error}; the cluster goes on, but "
                "`slipstream status`, and the next driver if this one is killed, only know what was written before"
            )
        with suppress(RuntimeError):  # no loop runs so far; the first change tries again
            self._timer = asyncio.get_running_loop().call_later(AGAIN_S, self.write)


def read(path: Path) -> ClusterState | None:
    """The state in a file; None if there is no such file, or if it is not one of ours."""
    try:
        return _form().validate_json(path.read_bytes())
    except (OSError, ValidationError):
        return None
