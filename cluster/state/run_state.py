"""The state file of a running cluster, on its driver's machine: one JSON file per cluster, in the run folder.

The driver writes it; `slipstream status` and `slipstream down` read it, and so does the next driver of the same
guardian. A file whose guardian is gone (same pid *and* same start time) is stale.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, fields
from functools import cache
from pathlib import Path
from typing import IO, Any, Literal

from pydantic import TypeAdapter, ValidationError
from pydantic_core import PydanticSerializationError

from slipstream.cluster.fleet.fleet_port import MemberState
from slipstream.cluster.fleet.update_plan import Phase
from slipstream.cluster.processes import process_tree
from slipstream.cluster.state.model_state import ModelPhase, ModelState, StateOfModel, carry_on, phase_of
from slipstream.cluster.terminal.command_error import CommandError
from slipstream.router.config.router_config import MAX_UNIX_PATH_BYTES
from slipstream.router.protocol.messages import Role
from slipstream.router.tls.client_tls import ClientTlsConfig

SOON_S = 0.05
AGAIN_S = 5.0  # after which a file that could not be written is tried again

ClusterPhase = Literal["starting", "ready", "draining", "stopping", "down"]  # down: between two drivers


class AlreadyRunning(Exception):  # noqa: N818 - reads as the sentence it carries
    """A cluster of that name runs on this machine."""


@dataclass(slots=True)
class MemberStatus:
    """The state of one member. `state` is one of its own states (for workers see `worker_report`), `detail` one line
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
    model: str = ""


@dataclass(slots=True)
class ClusterState:
    """The state of a cluster. `pid` and `started` (`process_tree.start_time`) identify the process that gets signals
    for it (`guardian`), `driver` and `driver_started` its driver. `wanted` is how many groups of each role are to be
    there; empty: as the configuration says. `served` is the content of the file `config` as it was when it was read
    (`served_config`), with what has been changed of its models since. With several models, the fields of `StateOfModel`
    are those of the first, and `further` has the others. `version` is what is served of it is called, `content` the
    digest of that (`ModelContent`). `slipstream` and `guardian_slipstream` are the versions of this program that the
    two processes run."""

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
    grpc_url: str = ""  # of the repository, as that of its metrics
    tensor_metrics_url: str = ""
    operator_url: str = ""
    operator_token: str = ""
    operator_tls: ClientTlsConfig = field(default_factory=ClientTlsConfig)  # where that URL is https
    driver: int = 0
    driver_started: float = 0.0
    wanted: dict[Role, int] = field(default_factory=dict)
    update: str = ""  # the latest line about the latest update
    update_phase: Phase | None = None  # what it was in then; None: there was no update
    served: dict[str, Any] = field(default_factory=dict)
    version: str = ""
    content: str = ""
    slipstream: str = ""  # the driver's version
    guardian_slipstream: str = ""
    names: list[str] = field(default_factory=list)  # of all versions since the cluster was first started
    files: dict[str, str] = field(default_factory=dict)  # by version: which of its files is another one now
    tried: dict[str, str] = field(default_factory=dict)  # watched folders that were updated to, with their stamps
    is_leaving: bool = False  # the first model is being removed
    asked: str = ""  # what a repository's model asked for, where the first model is served for that
    promotions: dict[str, str] = field(default_factory=dict)  # models of the repository: the latest line about theirs
    further: list[ModelState] = field(default_factory=list)  # of the models but the first

    def public(self) -> dict[str, Any]:
        """The state as plain values, without secrets, and without what only the next driver has a use for."""
        hidden = ("operator_token", "operator_tls", "served", "tried", "further", "asked", "promotions")
        shown = {key: value for key, value in asdict(self).items() if key not in hidden}
        return shown | {"models": [self._shown(model) for model in self.models]}

    def _shown(self, model: StateOfModel) -> dict[str, Any]:
        phase, reason = self.phase_of(model)
        shown = {key: getattr(model, key) for key in ("config", "wanted", "version", "update", "update_phase", "files")}
        return {
            "name": model.model,
            "state": phase,
            "reason": reason,
            "is_for_repository": bool(model.asked),
            **shown,
        }

    @property
    def models(self) -> list[StateOfModel]:
        """All models but those of the repository. The first one's state is that of the cluster, as where there is no
        other."""
        return [self, *self.further] if self.model else [*self.further]

    def of_model(self, name: str) -> StateOfModel:
        """Raises KeyError if there is none of this name."""
        for model in self.models:
            if model.model == name:
                return model
        raise KeyError(name)

    def forget_model(self, name: str) -> None:
        """Removes a model. If it was the first, the next one is in its place, if there is one."""
        if name == self.model:
            first = self.further.pop(0) if self.further else ModelState("")
            for one in fields(ModelState):
                setattr(self, one.name, getattr(first, one.name))
        self.further = [model for model in self.further if model.model != name]

    def members_of(self, model: StateOfModel) -> list[MemberStatus]:
        """Its worker groups. In a file that a driver of a single model has written, they name no model."""
        workers = [one for one in self.members if one.role in ("prefill", "decode")]
        return [one for one in workers if one.model in ("", model.model)]

    def phase_of(self, model: StateOfModel) -> tuple[ModelPhase, str]:
        """The model's state, and the reason if there is one to give."""
        return phase_of(self.members_of(model), model.is_leaving)

    def carry_on(self, before: ClusterState) -> None:
        """Takes over what the previous driver has found out or decided, until this one knows better: if this one dies
        before that, the next one still has it."""
        self.url, self.admin_url = before.url, before.admin_url
        self.grpc_url, self.tensor_metrics_url = before.grpc_url, before.tensor_metrics_url
        self.promotions = dict(before.promotions)
        if not self.further and not before.further:
            carry_on(self, before)
            return
        for model in self.models:
            with suppress(KeyError):
                carry_on(model, before.of_model(model.model))

    @property
    def ask_url(self) -> str:
        """The URL for operators' requests to the router: that of the admin port if there is one, else that of the
        API."""
        return self.admin_url or self.url

    @property
    def is_stale(self) -> bool:
        return not process_tree.is_running(self.pid, self.started)

    @property
    def last_words(self) -> str:
        """One sentence about a cluster that is stale."""
        if self.has_driver:
            return (
                f"its guardian (pid {self.pid}) was killed, and its driver (pid {self.driver}) lets running requests "
                "finish"
            )
        return f"its guardian (pid {self.pid}) was killed, or the machine went down"

    @property
    def has_driver(self) -> bool:
        """Otherwise it was killed, and the next one has not come so far."""
        return process_tree.is_running(self.driver, self.driver_started)

    @property
    def is_up(self) -> bool:
        """Whether it serves, and can be changed."""
        return self.phase == "ready" and self.has_driver


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


def state_folder() -> Path:
    """`$XDG_STATE_HOME/slipstream` or, without that variable, `~/.local/state/slipstream`: for what outlives the
    cluster. Raises NoHome."""
    state = os.environ.get("XDG_STATE_HOME")
    try:
        return (Path(state) if state else Path.home() / ".local" / "state") / "slipstream"
    except RuntimeError:
        raise NoHome("this user has no home directory; set HOME or XDG_STATE_HOME") from None


def store_folder(name: str) -> Path | None:
    """Where the router of the cluster with this name keeps objects and files, unless its configuration says otherwise.
    None: this user has no folder for that."""
    try:
        return state_folder() / "store" / name
    except NoHome:
        return None


def instances_path(name: str) -> Path:
    """Where the router of the cluster with this name listens for instances on its host: in the run folder, if a Unix
    socket can have so long a path."""
    path = run_folder() / f"{name}.instances.sock"
    if len(str(path).encode()) <= MAX_UNIX_PATH_BYTES:
        return path
    digest = hashlib.sha256(str(path).encode()).hexdigest()[:16]
    return Path(tempfile.gettempdir()) / f"slipstream-{os.getuid()}-{digest}.sock"


@contextmanager
def claim(name: str, folder: Path, guardian: int) -> Iterator[Path]:
    """Reserves a cluster's name for this process, a driver of that guardian; yields the path of its state file, which
    may be there from a previous driver. Another guardian's is one between two drivers. Raises AlreadyRunning and
    OSError."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    path = folder / f"{name}.json"
    with _opened(folder / f"{name}.lock") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise _already_running(name, read(path)) from None
        other = read(path)
        if other is not None and other.pid != guardian and not other.is_stale:
            raise _already_running(name, other)
        yield path


def check_unused(name: str, folder: Path) -> None:
    """Raises AlreadyRunning if a cluster of that name runs here. `claim` is what reserves a name."""
    other = read(folder / f"{name}.json")
    if other is not None and (other.has_driver or not other.is_stale):
        raise _already_running(name, other)


def _opened(lock: Path) -> IO[str]:
    """On a file system that can only be read by now, the file of the previous driver serves as well."""
    try:
        return lock.open("w")
    except OSError as error:
        if error.errno != errno.EROFS:
            raise
        return lock.open()


def _already_running(name: str, other: ClusterState | None) -> AlreadyRunning:
    if other is not None and other.is_stale and other.has_driver:
        return AlreadyRunning(f"the cluster named {name} is still ending: {other.last_words}")
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


def read_all(folder: Path) -> list[ClusterState]:
    """All clusters that run on this machine."""
    return [state for path in _files(folder) if (state := read(path)) is not None and not state.is_stale]


def sweep(folder: Path) -> list[ClusterState]:
    """Those that have ended without an order, and were not reported so far: their files are removed now. One whose
    driver is still at it keeps its file until that ends."""
    found = []
    for path in _files(folder):
        state = read(path)
        if state is not None and state.is_stale:
            found.append(state)
            if not state.has_driver:
                with suppress(OSError):  # a folder that cannot be written: it will be reported again
                    path.unlink(missing_ok=True)
    return found


def _files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.json"))


def remove_those_of(guardian: int) -> None:
    """Removes what the drivers of that guardian have left, which is about to end."""
    with suppress(NoHome, OSError):
        for path in run_folder().glob("*.json"):
            state = read(path)
            if state is not None and state.pid == guardian:
                path.unlink(missing_ok=True)


def cluster_here(name: str | None, elsewhere: str, among_several: str | None = None) -> ClusterState:
    """The cluster called `name` or, without a name, the only one that runs on this machine; if there are several, the
    one called `among_several`. Raises CommandError, which mentions that options like `elsewhere` find clusters on other
    machines."""
    states = [state for state in read_all(run_folder()) if name in (None, state.name)]
    if not states:
        which = f"no cluster named {name} runs here" if name is not None else "no cluster runs here"
        ended = "".join(f"; {one.name} has ended: {one.last_words}" for one in sweep(run_folder()))
        raise CommandError(f"{which}{ended}; for one elsewhere give {elsewhere}")
    if len(states) > 1 and among_several is not None:
        states = [state for state in states if state.name == among_several] or states
    if len(states) > 1:
        names = ", ".join(state.name for state in states)
        raise CommandError(f"several clusters run here, say which one with --name: {names}")
    return states[0]
