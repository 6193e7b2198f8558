"""The messages about a worker itself, not about any request: its properties, its state, and heartbeats.

worker                     router
  |------ Hello ------------->|      once a connection
  |<----- Welcome, Rejected --|      or Postponed
  |------ Credits ----------->|      when more or less is free
  |------ BlocksChanged ----->|      when the prefix cache changes; whole after ResyncBlocks
  |------ Stats, StepTimes -->|      now and then
  |<----- PageLimit ----------|      where workers divide the memory of a host
  |------ PagesHeld --------->|      when what it holds or wants of it changes
  |<----- Ping ---------------|
  |------ Pong -------------->|
  |<----- PeerLost -----------|      another worker is lost
  |<----- Drain --------------|
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from slipstream.kv_transfer.api.ticket import PeerId, TransferAddress

Role = Literal["prefill", "decode"]
ROLES: tuple[Role, Role] = ("prefill", "decode")


class StepBuckets(NamedTuple):
    """Counters of `Stats` that say how many steps were in each bucket. A name is the prefix and the upper end of a
    bucket, or "inf"."""

    prefix: str
    bounds: tuple[int, ...]


# The bounds are those of vLLM's `vllm:iteration_tokens_total`.
STEP_TOKENS = StepBuckets("step_tokens_le_", (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384))
STEP_SEQUENCES = StepBuckets("step_sequences_le_", (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024))


@dataclass(frozen=True, slots=True)
class Build:
    """The software and hardware of a worker. Workers whose builds differ exchange pages, but may round differently. "":
    it does not say, or has none of it (`cuda` and `driver` without a GPU, `torch` in a mock worker)."""

    slipstream: str = ""
    python: str = ""
    torch: str = ""
    cuda: str = ""  # that torch was built for
    driver: str = ""  # of the GPU
    instructions: str = ""  # of the kernels, as in "avx512", "torch AVX2" or "cuda 9.0"
    dtype: str = ""  # of weights and activations


@dataclass(frozen=True, slots=True)
class PageLayout:
    """What a KV page is made of, of the whole model. 0 or "": the worker does not say."""

    num_layers: int = 0
    num_kv_heads: int = 0
    head_dim: int = 0
    head_bytes: int = 0  # K and V of one head of one page
    page_dtype: str = ""
    transfer: str = ""  # the protocol in which pages are sent


@dataclass(frozen=True, slots=True)
class Hello:
    """The first frame on a connection. `epoch` counts the connections of a worker; nothing of earlier ones is left.
    `version` is the version of the protocol, `oldest_version` the oldest one that the worker understands (0: no other).
    Pages are counted everywhere as they are: where layers have windows, a block of `page_tokens` tokens takes a page in
    each of several groups, and some of them hold no more than `group_pages` of a sequence at a time.
    """

    version: int
    token: str
    worker: PeerId
    role: Role
    model: str
    tp: int
    pid: int
    addresses: tuple[TransferAddress, ...]  # one per rank
    page_tokens: int
    num_pages: int
    max_slots: int
    max_queued_tokens: int
    max_model_len: int
    max_step_tokens: int = 2048  # of all sequences in one step; longer prompts are computed in chunks
    prefix_caching: bool = True  # whether it reports which pages its prefix cache holds
    model_version: str = ""  # KV and tokens of different versions of a model never meet
    oldest_version: int = 0
    build: Build = Build()
    layout: PageLayout = PageLayout()
    page_limit: int | None = None  # how many pages may take memory now; None: all, always, and no `PageLimit` is obeyed
    reserves_output: bool = False  # it takes a sequence only with pages for the most output that it may have
    group_pages: tuple[
        int, ...
    ] = ()  # by page group: the most pages that a sequence holds (0: one each block; (): (0,))
    keeps_states: bool = False  # of its cached prefixes, only those that end with a block that it reports are of use
    block_tokens: int = 0  # of its prefix cache; 0: as many as `page_tokens`
    state_pages: int = 0  # of a sequence, beside those of its tokens
    end_token_ids: tuple[int, ...] = ()  # at which an output ends, unless its request ignores them; (): it does not say
    logits_processors: tuple[str, ...] = ()  # the names of those that requests may choose

    @property
    def cached_block_tokens(self) -> int:
        """Tokens of a block that it reports."""
        return self.block_tokens or self.page_tokens


class Credits(NamedTuple):
    """How much more the worker could take on, counted after the message numbered `ack_seq` (0: before any)."""

    ack_seq: int
    free_slots: int
    free_pages: int
    free_tokens: int


@dataclass(frozen=True, slots=True)
class GpuUsage:
    """A GPU, by the UUID that NVML and DCGM have. `utilization` is 0 to 1. None: it does not say."""

    uuid: str
    utilization: float | None = None
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
    power_w: float | None = None
    temperature_c: float | None = None


@dataclass(frozen=True, slots=True)
class RankUsage:
    """What the process of a rank takes: seconds of processors since it began, memory now, and its GPUs."""

    rank: int
    cpu_seconds: float
    resident_memory_bytes: int
    gpus: tuple[GpuUsage, ...] = ()


@dataclass(frozen=True, slots=True)
class Stats:
    """Gauges, and totals since the connection began. Sent about once a second if they have changed, and at once when
    the last page in use was given back. `pages` counts pages by state (free, cached, active, reserved, held, draining),
    `counters` counts events by name. `usage` has the ranks that measure it, and is a reason to send only every ten
    seconds."""

    num_running: int
    num_waiting: int
    pages: tuple[tuple[str, int], ...]
    counters: tuple[tuple[str, float], ...]
    usage: tuple[RankUsage, ...] = ()


@dataclass(frozen=True, slots=True)
class PagesHeld:
    """The pages of a worker with a limit, counted after the `PageLimit` numbered `ack_seq` (0: before any).

    `num_held` may take memory: as many as the limit allows, or more while they are still in use or their memory has yet
    to be returned. `num_used` of them are in use, others may be cached. `num_wanted` more are needed by sequences that
    wait for pages. Sent at once when it holds fewer, has taken over a limit, or begins to want pages; else a few times
    a second while something changes."""

    ack_seq: int
    num_held: int
    num_used: int
    num_cached: int
    num_wanted: int


@dataclass(frozen=True, slots=True)
class BlocksChanged:
    """The full pages that the worker's prefix cache has stored and removed, as packed block ids of eight bytes each.

    `seq` counts these messages from 1 on each connection. In a snapshot, `stored` is all that the cache holds (if that
    is too long for one message, the following ones add to it). The first message of a worker that begins with an empty
    cache need not be a snapshot. If a number is missing, the router asks for a snapshot with `ResyncBlocks`."""

    seq: int
    is_snapshot: bool
    stored: bytes
    removed: bytes


@dataclass(frozen=True, slots=True)
class StepTime:
    """What an engine step computed, and how long it took. `prefill_context_tokens` is the mean number of tokens that a
    prompt token of the step attends to, `decode_context_tokens` the sum of the contexts of the sequences that decode.
    Steps that only decode are summed up: one sample then stands for `num_steps` steps."""

    num_prefill_tokens: int
    prefill_context_tokens: int
    num_decoding: int
    decode_context_tokens: int
    seconds: float
    num_steps: int = 1


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Samples of the latest steps, a bounded number per second."""

    samples: tuple[StepTime, ...]


@dataclass(frozen=True, slots=True)
class Pong:
    nonce: int


@dataclass(frozen=True, slots=True)
class Welcome:
    router_id: str


@dataclass(frozen=True, slots=True)
class Rejected:
    """The router refuses this worker (wrong token or version), which should not come back unchanged."""

    reason: str


@dataclass(frozen=True, slots=True)
class Postponed:
    """The router does not serve this worker's model, but may be given it a moment later. The connection ends, and the
    worker should come back."""

    reason: str


@dataclass(frozen=True, slots=True)
class PeerLost:
    """Another worker was lost: transfers with it will not complete."""

    peer: PeerId


@dataclass(frozen=True, slots=True)
class ResyncBlocks:
    """Make the next `BlocksChanged` a snapshot of all that the prefix cache holds, because a message is missing."""


@dataclass(frozen=True, slots=True)
class PageLimit:
    """At most `num_pages` pages may take memory from now on. Pages in use beyond that are given back as they are no
    longer needed. `seq` counts these messages from 1 on each connection."""

    seq: int
    num_pages: int


@dataclass(frozen=True, slots=True)
class ServiceLevel:
    """Behind `Welcome`, where the worker's model has a level for the mean time between tokens."""

    itl_ms: float


@dataclass(frozen=True, slots=True)
class Ping:
    nonce: int


@dataclass(frozen=True, slots=True)
class Drain:
    """Finish what is running and take nothing new; then exit, or come back as `next_role` in the next epoch."""

    next_role: Role | None = None
