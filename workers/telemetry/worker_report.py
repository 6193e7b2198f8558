"""The state of a worker or rank, in plain values for its supervisor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from slipstream.router.protocol.messages import Role

WorkerState = Literal[
    "new",
    "freeing",
    "gathering",
    "fetching",
    "loading",
    "warming_up",
    "connecting",
    "ready",
    "draining",
    "stopped",
    "failed",
]


LEADER_GONE = "the leader is gone"  # begins what a rank says that has ended because of its leader


@dataclass(frozen=True, slots=True)
class WorkerReport:
    """`new -> gathering (tp > 1: waiting for the other ranks) -> fetching (if the model is not on its host) -> loading
    -> warming_up -> connecting <-> ready -> draining -> stopped`, or `failed` from anywhere. In a process that was a
    worker of another model, `new -> freeing` (the memory of that) comes first. A rank other than 0 is
    `ready` once it has loaded. `epoch` is that of the current connection to the router, 0 before the first. `progress`
    is one line for people. `startup_s`: the states of the start, or of the way to another role or model, and the
    seconds in each. `role` is the one it serves."""

    name: str
    rank: int
    pid: int
    state: WorkerState
    epoch: int
    progress: str
    startup_s: tuple[tuple[str, float], ...] = ()
    role: Role = "decode"


class WorkerFailed(RuntimeError):  # noqa: N818 - the word that supervisor, logs and reports use
    """The worker cannot continue and its process should end. The text is one sentence that says what went wrong."""
