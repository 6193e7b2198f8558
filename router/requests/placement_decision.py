"""What a placement is: where a request runs, why, and what else was possible.

local    the decode worker prefills in chunks beside its decoding
remote   a prefill group computes the prompt, its pages move to the decode worker
wait     no worker has room now, or waiting for a better one saves more than it costs
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal, NamedTuple, overload

from slipstream.kv_transfer.api.ticket import PeerId
from slipstream.router.registry.worker_registry import WorkerState

PlacementReason = Literal[
    "prompt_only",  # local: no output is wanted, so nothing would be handed off
    "short_prompt",  # local: the prompt is within the limit for local prefill
    "cheaper_local",  # local: by the policy's score
    "prefill_busy",  # local: too many prompts wait for the prefill groups, by `isl_threshold` or for background work
    "no_prefill_group",  # local: none is connected
    "prefill_too_small",  # local: no prefill group could ever hold it
    "prefill_failed",  # local: every prefill group has failed it before
    "prefill_unreachable",  # local: no link to a decode worker is open, or its pages could not be sent twice
    "prefill_incompatible",  # local: no prefill group has pages that fit a decode worker's (status says what differs)
    "cached_prefix",  # local: by `kv`, or because the reservation found it so, nearly all of the prompt is cached
    "long_prompt",  # remote: the prompt is over the limit for local prefill
    "cheaper_remote",  # remote: by the policy's score
    "policy_remote",  # remote: the policy leaves prompts to the prefill groups as long as there are any
]
REMOTE_REASONS: frozenset[PlacementReason] = frozenset({"long_prompt", "cheaper_remote", "policy_remote"})
FAILED_BEFORE = "failed this request before"
MAX_CANDIDATES = 64  # kept in a decision


@dataclass(frozen=True, slots=True)
class Term:
    """One part of a candidate's cost. `value` is in seconds unless the name says otherwise."""

    name: str
    value: float


@dataclass(frozen=True, slots=True)
class Candidate:
    """A possible placement: prefill at `prefill` (None: at `decode`), then decoding at `decode`.

    The lower the `cost` the better; it is the sum of the `terms`. `fits`: its workers had the credits at that moment.
    `excluded` says why a worker was out of the question whatever its cost ("failed this request before").
    """

    decode: PeerId
    prefill: PeerId | None
    cost: float
    fits: bool
    terms: tuple[Term, ...] = ()
    num_cached_tokens: int = 0  # of the prompt, expected in the cache of the worker that prefills
    excluded: str = ""


class Option(NamedTuple):
    """A candidate as a policy makes it: cheap, since most are never looked at. `terms` are values without names."""

    cost: float
    decode: WorkerState
    prefill: WorkerState | None
    fits: bool
    terms: tuple[float, ...]
    num_cached_tokens: int


# Makes an `Option` from a tuple of its fields. Calling the class would take twice as long, twenty times a placement.
option_of: Callable[[tuple[float, WorkerState, WorkerState | None, bool, tuple[float, ...], int]], Option] = partial(
    tuple.__new__, Option
)


class Candidates(Sequence[Candidate]):
    """Options, best first, which become candidates only when they are read, and then the placements that have failed
    the request before. At most `MAX_CANDIDATES` in all; the first option that fits is among them. Keeps no worker
    alive."""

    __slots__ = ("_excluded", "_names", "_options")

    def __init__(
        self, options: Sequence[Option], names: tuple[str, ...], excluded: Sequence[tuple[PeerId, PeerId | None]] = ()
    ) -> None:
        self._names = names
        self._excluded = excluded[: MAX_CANDIDATES // 2]
        kept = options[: MAX_CANDIDATES - len(self._excluded)]
        if len(kept) < len(options) and not any(option.fits for option in kept):
            # The policy takes the first that fits, so that one is kept, however many better ones are full.
            kept = [*kept[:-1], next((option for option in options if option.fits), kept[-1])]
        self._options = [
            (decode.hello.worker, None if prefill is None else prefill.hello.worker, cost, fits, terms, num_cached)
            for cost, decode, prefill, fits, terms, num_cached in kept
        ]

    def __len__(self) -> int:
        return len(self._options) + len(self._excluded)

    @overload
    def __getitem__(self, at: int) -> Candidate: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[Candidate]: ...
    def __getitem__(self, at: int | slice) -> Candidate | Sequence[Candidate]:
        if isinstance(at, slice):
            return [self[index] for index in range(*at.indices(len(self)))]
        at = range(len(self))[at]
        if at >= len(self._options):
            decode, prefill = self._excluded[at - len(self._options)]
            return Candidate(decode, prefill, 0.0, False, excluded=FAILED_BEFORE)
        decode, prefill, cost, fits, values, num_cached = self._options[at]
        terms = tuple(Term(name, value) for name, value in zip(self._names, values, strict=True))
        return Candidate(decode, prefill, cost, fits, terms, num_cached)


class Decision(NamedTuple):
    """What was decided and why, in plain values that outlive the workers.

    `candidates` come best first, the chosen one among them. `margin` is how much more the best other way would have
    cost: negative if that way was better but had no room, None if there was no other. Predictions are None if the
    policy makes none.
    """

    decode: PeerId
    prefill: PeerId | None
    reason: PlacementReason
    why: str
    candidates: Sequence[Candidate]
    policy: str = ""
    margin: float | None = None
    predicted_ttft_s: float | None = None
    predicted_itl_s: float | None = None
    predicted_output_tokens: int | None = None

    def chose(self, candidate: Candidate) -> bool:
        """Whether this candidate was taken."""
        return candidate.decode == self.decode and candidate.prefill == self.prefill


class PromptTimes(NamedTuple):
    """Predicted seconds of a prompt on the worker that computes it. `own_s` is for the prompt alone, corrected by the
    worker's `reality`. `raw_s` includes the prompts ahead of it, and is not corrected."""

    own_s: float
    raw_s: float


class Placement(NamedTuple):
    """Where a request goes. `prefill` is None for local prefill, `prompt` if the policy predicts no times."""

    decode: WorkerState
    prefill: WorkerState | None
    decision: Decision
    prompt: PromptTimes | None = None


@dataclass(frozen=True, slots=True)
class Wait:
    """The request goes nowhere now. `lacks` is the side whose credits are missing; "worker": no decode worker could
    ever hold it.

    `saving_s`: some worker has room, but waiting for a better one saves so many seconds. A request that has waited for
    longer than that has lost what it could save and should take what there is, so that a wrong guess costs at most
    twice the best. `better` is the worker without room that it waits for.
    """

    lacks: Literal["worker", "decode", "prefill"]
    saving_s: float | None = None
    better: WorkerState | None = None


def where_to(decode: WorkerState, prefill: WorkerState | None) -> str:
    """How a decision's `why` begins."""
    return f"local on {decode.name}" if prefill is None else f"remote on {prefill.name} -> {decode.name}"


def margin_of(options: Sequence[Option], chosen: Option) -> float | None:
    """How much more the best other way costs; None if there is no other. `options` come best first."""
    if len(options) < 2:
        return None
    return (options[1] if chosen is options[0] else options[0]).cost - chosen.cost
