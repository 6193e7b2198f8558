"""What the router and the workers say to each other.

Plain frozen dataclasses; `router.wire` turns them into MessagePack frames and back. A request may be tried more
than once (a worker died, a page arrived broken): `attempt` numbers the tries, and whoever receives a message of an
attempt that is no longer current drops it.

`seq` on the messages that spend credits numbers them per connection; `Credits.ack_seq` names the last one
the worker had taken into account when it counted what is free.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from slipstream.kv_transfer.ticket import HandoffTicket, PeerId, TransferAddress

PROTOCOL_VERSION = 4

Role = Literal["prefill", "decode"]
FinishReason = Literal["stop", "length", "abort", "error"]


def pack_ids(token_ids: Iterable[int]) -> bytes:
    """Token ids as little-endian int32, the form they travel in."""
    return array("i", token_ids).tobytes()


def unpack_ids(packed: bytes) -> list[int]:
    """The inverse of `pack_ids`. Raises ValueError if the length is not a multiple of four bytes."""
    ids = array("i")
    ids.frombytes(packed)
    return ids.tolist()


GuideKind = Literal["json", "regex", "choice", "grammar"]


@dataclass(frozen=True, slots=True)
class Guide:
    """What the output has to look like. `spec` is a JSON schema, a regular expression, a JSON array of strings, or a
    grammar in Lark's or GBNF's form (see `router.grammar`)."""

    kind: GuideKind
    spec: str


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How to pick the next token. All values are final: the front has filled in defaults and a seed.

    The random draw at output position i is a function of (seed, i) alone, so that a request which moves to another
    worker continues identically. `temperature == 0` is greedy. `top_k == 0` and `top_p == 1` switch the filter off.
    `logprobs` is the number of alternatives to report beside the chosen token (0: only the chosen one), None: off.
    """

    max_tokens: int
    min_tokens: int = 0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    seed: int = 0
    logprobs: int | None = None
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    guide: Guide | None = None


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """One attempt at a request, as a worker sees it. `output_ids` holds what earlier attempts already produced."""

    request_id: str
    attempt: int
    prompt_ids: bytes
    output_ids: bytes
    sampling: SamplingParams
    cache_salt: str = ""
    priority: int = 0


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


@dataclass(frozen=True, slots=True)
class Credits:
    """What the worker could take on, counted after the message `ack_seq`; 0 before any."""

    ack_seq: int
    free_slots: int
    free_pages: int
    free_tokens: int


@dataclass(frozen=True, slots=True)
class Reserved:
    """Decode worker: pages are leased and receives are posted. `num_cached_tokens` of the prompt were already here."""

    request_id: str
    attempt: int
    num_cached_tokens: int
    ticket: HandoffTicket


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """`top` are (token id, logprob) pairs, best first."""

    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class TokenChunk:
    """Tokens `index .. index+len` of a request's output. `index` counts from the first token ever generated for it."""

    request_id: str
    attempt: int
    index: int
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...] = ()
    finish_reason: FinishReason | None = None
    stop_token_id: int | None = None
    num_cached_tokens: int = 0


@dataclass(frozen=True, slots=True)
class StepOutput:
    """All tokens of one engine step."""

    chunks: tuple[TokenChunk, ...]


@dataclass(frozen=True, slots=True)
class HandedOff:
    """Decode worker: all pages came whole and are its own now."""

    request_id: str
    attempt: int
    num_bytes: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Copied:
    """Decode worker: the full pages of a sequence that goes on elsewhere are here, those of `transfer_id`; it waits for
    an `Extend`."""

    request_id: str
    attempt: int
    transfer_id: int
    num_bytes: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Frozen:
    """Decode worker: the sequence stands still after `num_output_tokens` tokens of output, all of them told, and its
    last pages are being sent. It waits for `Resume` or `Cancel`."""

    request_id: str
    attempt: int
    num_output_tokens: int


@dataclass(frozen=True, slots=True)
class Failed:
    """The attempt is over here and holds nothing any more. Not retryable: the request itself is at fault.
    `is_unreachable`: the other end of its transfer cannot be reached."""

    request_id: str
    attempt: int
    reason: str
    retryable: bool
    is_unreachable: bool = False


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
class Generate:
    """Decode worker: prefill here in chunks and decode. Converts a reservation of the same attempt, if there is one."""

    seq: int
    request: EngineRequest


@dataclass(frozen=True, slots=True)
class Reserve:
    """Decode worker: lease pages for the prompt and post receives for what `source` will send."""

    seq: int
    request: EngineRequest
    source: PeerId
    source_tp: int


@dataclass(frozen=True, slots=True)
class Prefill:
    """Prefill group: compute the prompt, sample one token, send the pages that the ticket asks for."""

    seq: int
    request: EngineRequest
    ticket: HandoffTicket


@dataclass(frozen=True, slots=True)
class Start:
    """Decode worker: decoding may begin after `token_ids` as soon as the pages are here."""

    request_id: str
    attempt: int
    token_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Adopt:
    """Decode worker: lease pages for a sequence that decodes on `source`, and post receives for what `source` sends.

    `num_room_tokens` 0: only pages that are full by now are wanted, and the sequence goes on there meanwhile; what
    follows them is asked for with `Extend`. Otherwise this is the last of it: pages for as many more tokens, and the
    sequence goes on here once they have landed and `Start` has told the tokens that are missing."""

    seq: int
    request: EngineRequest
    source: PeerId
    source_tp: int
    num_room_tokens: int


@dataclass(frozen=True, slots=True)
class Extend:
    """Decode worker: an adopted sequence has got on by `token_ids`; the same for the pages after those that landed."""

    seq: int
    request_id: str
    attempt: int
    token_ids: tuple[int, ...]
    num_room_tokens: int


@dataclass(frozen=True, slots=True)
class Migrate:
    """Decode worker: send the pages of a sequence that decodes here to where it goes on as attempt `to_attempt`. With
    `freeze` it stops at the end of the step first, and says `Frozen`. If it cannot be sent it goes on here, and
    `Failed` says so of `to_attempt`."""

    request_id: str
    attempt: int
    to_attempt: int
    ticket: HandoffTicket
    freeze: bool


@dataclass(frozen=True, slots=True)
class Resume:
    """Decode worker: the migration is off. A sequence that was frozen goes on here. Unknown ids are ignored."""

    request_id: str
    attempt: int


@dataclass(frozen=True, slots=True)
class Cancel:
    """Drop the attempt; free its pages when no transfer can touch them. Unknown ids are ignored."""

    request_id: str
    attempt: int


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


WorkerMessage = (
    Hello
    | Credits
    | Reserved
    | StepOutput
    | HandedOff
    | Copied
    | Frozen
    | Failed
    | Stats
    | BlocksChanged
    | StepTimes
    | Pong
)
RouterMessage = (
    Welcome
    | Rejected
    | Generate
    | Reserve
    | Prefill
    | Start
    | Adopt
    | Extend
    | Migrate
    | Resume
    | Cancel
    | PeerLost
    | ResyncBlocks
    | Ping
    | Drain
)
