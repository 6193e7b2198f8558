"""What a worker is, how it is, and whether it is there: everything that is about no request.

worker                     router
  |------ Hello ------------->|      once a connection
  |<----- Welcome, Rejected --|
  |------ Credits ----------->|      when more or less is free
  |------ BlocksChanged ----->|      when the prefix cache changes; whole after ResyncBlocks
  |------ Stats, StepTimes -->|      now and then
  |<----- Ping ---------------|
  |------ Pong -------------->|
  |<----- PeerLost -----------|      another worker is gone
  |<----- Drain --------------|
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from slipstream.kv_transfer.ticket import PeerId, TransferAddress

Role = Literal["prefill", "decode"]
ROLES: tuple[Role, Role] = ("prefill", "decode")

# ---- worker -> router


@dataclass(frozen=True, slots=True)
class Hello:
    """First frame on a connection. `epoch` counts a worker's (re)connections: all state of earlier ones is gone."""

    version: int
    token: str
    worker: PeerId
    role: Role
    model: str
    tp: int
    pid: int
    addresses: tuple[TransferAddress, ...]  # one a rank
    page_tokens: int
    num_pages: int
    max_slots: int
    max_queued_tokens: int
    max_model_len: int
    max_step_tokens: int = 2048  # of all sequences: longer prompts are computed in chunks
    prefix_caching: bool = True  # it tells which pages its prefix cache holds
    model_version: str = ""  # KV and tokens of different versions of a model never meet


class Credits(NamedTuple):
    """What the worker could take on, counted after the message `ack_seq`; 0 before any."""

    ack_seq: int
    free_slots: int
    free_pages: int
    free_tokens: int


@dataclass(frozen=True, slots=True)
class Stats:
    """Gauges and totals since the connection began, sent about once a second when changed and after each ledger
    change to zero. `pages` counts pages by state (free, cached, active, reserved, held, draining), `counters` events
    by name."""

    num_running: int
    num_waiting: int
    pages: tuple[tuple[str, int], ...]
    counters: tuple[tuple[str, float], ...]


@dataclass(frozen=True, slots=True)
class BlocksChanged:
    """The worker's prefix cache has taken in and let go of full pages: their block ids of eight bytes, packed.

    `seq` counts these messages from 1 on each connection. A snapshot says that `stored` is all there is (and the
    messages after it add to that, where it is too long for one); the first message of a worker that begins with an
    empty cache need not be one. Where numbers are left out, the router asks for a snapshot with `ResyncBlocks`."""

    seq: int
    is_snapshot: bool
    stored: bytes
    removed: bytes


@dataclass(frozen=True, slots=True)
class StepTime:
    """What an engine step computed, and how long it took. `prefill_context_tokens` is the mean number of tokens that
    a prompt token of the step attends to, `decode_context_tokens` the sum over the sequences that decode. Of steps
    that only decode, `num_steps` are summed up."""

    num_prefill_tokens: int
    prefill_context_tokens: int
    num_decoding: int
    decode_context_tokens: int
    seconds: float
    num_steps: int = 1


@dataclass(frozen=True, slots=True)
class StepTimes:
    """A few of the latest steps, a bounded number a second."""

    samples: tuple[StepTime, ...]


@dataclass(frozen=True, slots=True)
class Pong:
    nonce: int


# ---- router -> worker


@dataclass(frozen=True, slots=True)
class Welcome:
    router_id: str


@dataclass(frozen=True, slots=True)
class Rejected:
    """The router will not have this worker (bad token, version, model); it should not come back unchanged."""

    reason: str


@dataclass(frozen=True, slots=True)
class PeerLost:
    """A worker is gone: transfers with it will not complete."""

    peer: PeerId


@dataclass(frozen=True, slots=True)
class ResyncBlocks:
    """Tell with the next `BlocksChanged` all that the prefix cache holds: a message of those is missing."""


@dataclass(frozen=True, slots=True)
class Ping:
    nonce: int


@dataclass(frozen=True, slots=True)
class Drain:
    """Finish what is running, take nothing new; then exit, or come back as `next_role` in the next epoch."""

    next_role: Role | None = None
