"""The state file of a running cluster, on its driver's machine: one JSON file per cluster, in the run folder.

The driver writes it; `slipstream status` and `slipstream down` read it, and so does the next driver of the same
guardian. A file whose guardian is gone (same pid *and* same start time) is stale.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal

from pydantic import TypeAdapter, ValidationError
from pydantic_core import PydanticSerializationError

from slipstream.cluster import processes
from slipstream.cluster.cannot_tell import CannotTell
from slipstream.cluster.fleet import MemberState
from slipstream.router.messages import Role

SOON_S = 0.05

log = logging.getLogger(__name__)

ClusterPhase = Literal["starting", "ready", "draining", "stopping", "down"]  # down: between two drivers


class AlreadyRunning(Exception):  # noqa: N818 - reads as the sentence it carries
    """A cluster of that name runs on this machine."""


@dataclass(slots=True)
class MemberStatus:
    """The state of one member. `state` is one of its own states (for workers see `workers.report`), `detail` one line
    for people, `since` in seconds since the epoch. `startup_s` are the stages of a worker's last start, with their
    seconds."""

    name: str
    role: str
    state: MemberState = "new"
    detail: str = ""
    pids: list[int] = field(default_factory=list)
    restarts: int = 0
    since: float = 0.0
    startup_s: list[tuple[str, float]] = field(default_factory=list)
    host: str = ""
    version: str = ""


@dataclass(slots=True)
class ClusterState:
    """The state of a cluster. `pid` and `started` (`processes.start_time`) identify the process that gets signals for
    it (`guardian`), `driver` is its driver's pid. `wanted` is how many groups of each role are to be there. `served` is
    the content of the file `config` as it was when it was read (`served_config`)."""

    name: str
    pid: int
    started: float
    config: str
    model: str
    phase: ClusterPhase = "starting"
    url: str = ""
    log_dir: str = ""
    members: list[MemberStatus] = field(default_factory=list)
    admin_url: str = ""
    operator_url: str = ""
    operator_token: str = ""
    driver: int = 0
    wanted: dict[Role, int] = field(default_factory=dict)
    update: str = ""  # the latest line about the latest rolling update
    served: dict[str, Any] = field(default_factory=dict)

    def public(self) -> dict[str, Any]:
        """The state as plain values, without secrets, and without what only the next driver has a use for."""
        return {key: value for key, value in asdict(self).items() if key not in ("operator_token", "served")}

    def carry_on(self, before: ClusterState) -> None:
        """Takes over what the driver before has found out or decided, until this one knows better: if this one dies
        before that, the next one still has it."""
        self.url, self.admin_url, self.wanted, self.update = before.url, before.admin_url, before.wanted, before.update

    @property
    def ask_url(self) -> str:
        """The URL for operators' requests to the router: that of the admin port if there is one, else that of the
        API."""
        return self.admin_url or self.url

    @property
    def is_stale(self) -> bool:
        return not processes.is_running(self.pid, self.started)


def run_folder() -> Path:
    """`$XDG_RUNTIME_DIR/slipstream` or, without that variable, `~/.cache/slipstream/run`."""
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    return Path(runtime) / "slipstream" if runtime else cache_folder() / "run"


class NoHome(Exception):  # noqa: N818 - reads as the sentence it carries
    """There is no folder for the files of a cluster."""


def cache_folder() -> Path:
    """Raises NoHome."""
    cache = os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(cache) if cache else Path.home() / ".cache") / "slipstream"
    except RuntimeError:
        raise NoHome("this user has no home directory; set HOME, or XDG_RUNTIME_DIR and XDG_CACHE_HOME") from None


@contextmanager
def claim(name: str, folder: Path, guardian: int) -> Iterator[Path]:
    """Reserves a cluster's name for this process, a driver of that guardian; yields the path of its state file, which
    may be there from a driver before. Another guardian's is one between two drivers. Raises AlreadyRunning, OSError."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    path = folder / f"{name}.json"
    with (folder / f"{name}.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise _already_running(name, read(path)) from None
        other = read(path)
        if other is not None and other.pid != guardian and not other.is_stale:
            raise _already_running(name, other)
        yield path


def _already_running(name: str, other: ClusterState | None) -> AlreadyRunning:
    who = f" (pid {other.pid}{', ' + other.url if other.url else ''})" if other else ""
    return AlreadyRunning(
        f"a cluster named {name} runs already{who}: "
        f"stop it with `slipstream down {name}`, or choose another name with --name"
    )


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
    """Replaces the file atomically. If the disk is full, the old file stays and the failure is logged: that is no
    reason to end anybody's stream."""
    temporary = path.with_name(f".{path.name}.new")  # only the driver writes
    try:
        temporary.touch(mode=0o600)  # it holds the operator's token
        temporary.write_bytes(_as_json(state))
        os.replace(temporary, path)
    except OSError as error:
        log.warning("%s cannot be written: %s", path, error.strerror or error)
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


class StateFile:
    """The state file of the cluster whose driver runs on this event loop."""

    def __init__(self, path: Path, state: ClusterState) -> None:
        self.path = path
        self.state = state
        self._timer: asyncio.TimerHandle | None = None

    def write(self) -> None:
        """Writes the file at once."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        write(self.path, self.state)

    def write_soon(self) -> None:
        """Writes the file once for all changes within `SOON_S`. While a thousand members start, each of them changes
        all the time, and the file contains them all."""
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(SOON_S, self.write)


def read(path: Path) -> ClusterState | None:
    """The state in a file; None if there is no such file, or if it is not one of ours."""
    try:
        return _form().validate_json(path.read_bytes())
    except (OSError, ValidationError):
        return None


def read_all(folder: Path) -> list[ClusterState]:
    """All clusters that run on this machine. Removes the files of those that no longer do."""
    found = []
    for path in sorted(folder.glob("*.json")):
        state = read(path)
        if state is not None and not state.is_stale:
            found.append(state)
        elif state is not None:
            path.unlink(missing_ok=True)
    return found


def remove_those_of(guardian: int) -> None:
    """Removes what the drivers of that guardian have left, which is about to end."""
    with suppress(NoHome, OSError):
        for path in run_folder().glob("*.json"):
            state = read(path)
            if state is not None and state.pid == guardian:
                path.unlink(missing_ok=True)


def cluster_here(name: str | None, elsewhere: str) -> ClusterState:
    """The cluster called `name` or, without a name, the only one that runs on this machine. Raises CannotTell, which
    mentions that options like `elsewhere` find clusters on other machines."""
    states = [state for state in read_all(run_folder()) if name in (None, state.name)]
    if not states:
        which = f"no cluster named {name} runs here" if name is not None else "no cluster runs here"
        raise CannotTell(f"{which}; for one elsewhere give {elsewhere}")
    if len(states) > 1:
        names = ", ".join(state.name for state in states)
        raise CannotTell(f"several clusters run here, say which one with --name: {names}")
    return states[0]
