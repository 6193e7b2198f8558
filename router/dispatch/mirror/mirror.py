"""Decides which requests are copied, and compares the answers. Sans-IO.

    original admitted --every 100/percent-th--> Pair --both have ended--> compared
                                                 |
                                                 '--the copy is refused--> skipped

A copy has an id of its own and nothing of its original's client: no tenant, no names, no session, no deadline. It is
less urgent than any request. So nothing that is counted or limited by client knows of it.

If the client ends the original early, by leaving or because its stop string was found, the copy is of interest up to
the same number of tokens only, and is cancelled there.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field

from slipstream.router.protocol.generation import GenerateRequest, GenerationFinish
from slipstream.router.status.mirror_status import MirrorCounts

MAX_PAIRS = 1024  # whose answers are kept until both have come
COPY_PRIORITY = 1_000_000  # below all that clients may ask for
PREFIX = "mirror-"


@dataclass(slots=True, eq=False)
class Pair:
    """An original and its copy, with their tokens so far."""

    copy: GenerateRequest
    answer: array[int] = field(default_factory=lambda: array("i"))
    copied_answer: array[int] = field(default_factory=lambda: array("i"))
    num_wanted: int | None = None  # how many tokens of the copy are of interest; None: all
    is_comparable: bool = True
    num_ended: int = 0

    @property
    def is_copy_done(self) -> bool:
        """Whether the copy has all tokens that are of interest, so that it is to be cancelled."""
        return self.num_wanted is not None and len(self.copied_answer) >= self.num_wanted


class Mirror:
    """`percent` of the requests are copied, spread out evenly."""

    def __init__(self, percent: float) -> None:
        self.counts = MirrorCounts(percent)
        self._debt = 0.0  # in copies
        self._number = 0
        self._num_pairs = 0

    def pair_of(self, request: GenerateRequest) -> Pair | None:
        """The pair for a request that has been admitted, whose copy is to be submitted; None: it is not copied."""
        if request.resumed is not None:  # of a router that has died: its answer has begun
            return None
        self._debt += self.counts.percent / 100
        if self._debt < 1.0:
            return None
        self._debt -= 1.0
        if self._num_pairs >= MAX_PAIRS:
            self.counts.num_skipped += 1
            return None
        self._number += 1
        self._num_pairs += 1
        self.counts.num_copied += 1
        copy = GenerateRequest(
            request_id=f"{PREFIX}{self._number}",
            prompt_ids=request.prompt_ids,
            sampling=request.sampling._replace(prompt_logprobs=None),
            priority=COPY_PRIORITY,
            cache_salt=request.cache_salt,
            model=request.model,
        )
        return Pair(copy, is_comparable=request.sampling.temperature == 0.0)

    def refused(self, pair: Pair) -> None:
        """The copy was not let in."""
        self.counts.num_copied -= 1
        self.counts.num_skipped += 1
        pair.is_comparable = False
        self._ended(pair)

    def original_ended(self, pair: Pair, finish: GenerationFinish) -> None:
        if finish.reason == "error":
            pair.is_comparable = False
        elif finish.reason == "abort" or (finish.reason == "stop" and finish.stop_token_id is None):
            pair.num_wanted = len(pair.answer)
        self._ended(pair)

    def copy_ended(self, pair: Pair, finish: GenerationFinish) -> None:
        if finish.reason == "error":
            pair.is_comparable = False
            self.counts.num_failed += 1
        elif finish.reason == "abort" and not pair.is_copy_done:  # the mirror itself has ended
            pair.is_comparable = False
        self._ended(pair)

    def _ended(self, pair: Pair) -> None:
        pair.num_ended += 1
        if pair.num_ended < 2:
            return
        self._num_pairs -= 1
        if not pair.is_comparable or pair.num_wanted == 0:
            return
        answer, copied = pair.answer, pair.copied_answer[: pair.num_wanted]
        self.counts.num_compared += 1
        if answer == copied:
            self.counts.num_equal += 1
        else:
            self.counts.first_differences += first_difference(answer, copied)


def first_difference(one: array[int], other: array[int]) -> int:
    """The position of the first token that is not the same in both; if one is the beginning of the other, its
    length."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((at for at, (ours, theirs) in pairs if ours != theirs), min(len(one), len(other)))
