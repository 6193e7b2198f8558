"""Beam search as a state machine: it takes the best next tokens of each beam, and says which beams to go on with.

The rules, and with them ids and order of the hypotheses, are those of transformers' `generate(num_beams=...)` (5.x,
`GenerationMixin._beam_search`), whose arithmetic is in float32, as here:

    candidates   the best `num_candidates` of all beams' continuations by the sum of their log-probabilities: so many
                 that `num_beams` of them do not end, whichever end tokens are among them
    finished     a candidate that ends (by an end token, or as long as an output may be) is a hypothesis if it is one of
                 the best `num_beams`. Its score is its sum divided by length ** length_penalty. The best `num_beams`
                 hypotheses are kept
    running      the best `num_beams` candidates that do not end go on
    over         once there are `num_beams` hypotheses and, by `early_stopping`: True: at once; False: when the best
                 beam, at its present length, is no better than the worst of them; "never": the same at the length at
                 which it could come out best
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np

from slipstream.router.protocol.messages import TokenLogprob

EarlyStopping = Literal["never"] | bool


class BeamSettings(NamedTuple):
    """`max_tokens` is the longest that an output may be."""

    num_beams: int
    max_tokens: int
    length_penalty: float = 1.0
    early_stopping: EarlyStopping = False


class Beam:
    """One token after those of `parent`, which beams share. `score` is the sum of all log-probabilities, float32."""

    __slots__ = ("logprob", "parent", "score", "token_id")

    def __init__(self, parent: Beam | None, token_id: int, logprob: TokenLogprob, score: np.float32) -> None:
        self.parent = parent
        self.token_id = token_id
        self.logprob = logprob
        self.score = score

    def path(self) -> list[Beam]:
        """The beams from the first token to this one."""
        path: list[Beam] = []
        beam: Beam | None = self
        while beam is not None:
            path.append(beam)
            beam = beam.parent
        path.reverse()
        return path


class Hypothesis(NamedTuple):
    """A finished output. `has_end`: its last token is an end token; else it is as long as it may be."""

    beam: Beam
    score: np.float32
    has_end: bool

    @property
    def token_ids(self) -> list[int]:
        return [beam.token_id for beam in self.beam.path()]


class BeamSearch:
    """One search, from the prompt on. While it is not `is_over`, `advance` wants candidates for each of `beams`: one
    that stands for the prompt alone (None), later those that go on. `num_tokens` are those of each beam so far."""

    def __init__(self, settings: BeamSettings, end_token_ids: Sequence[int]) -> None:
        self._settings = settings
        self._ends = frozenset(end_token_ids)
        self._finished: list[Hypothesis] = []
        self._may_improve = True
        self.beams: Sequence[Beam | None] = (None,)
        self.num_tokens = 0
        self.is_over = False

    @property
    def num_candidates(self) -> int:
        return candidates_for(self._settings.num_beams, len(self._ends))

    @property
    def hypotheses(self) -> Sequence[Hypothesis]:
        """Best first; `num_beams` of them once the search is over."""
        return self._finished

    def advance(self, candidates: Sequence[Sequence[tuple[int, TokenLogprob]]]) -> None:
        """Takes, for each beam, its `num_candidates` best next tokens (all, if the vocabulary is smaller) with their
        log-probabilities."""
        assert not self.is_over, "the search is over"
        settings, num_beams = self._settings, self._settings.num_beams
        best = self._best(candidates)
        self.num_tokens += 1
        at_limit = self.num_tokens >= settings.max_tokens
        ends = [at_limit or beam.token_id in self._ends for beam in best]
        self._finish([beam for beam, is_end in zip(best[:num_beams], ends, strict=False) if is_end])
        self.beams = [beam for beam, is_end in zip(best, ends, strict=True) if not is_end][:num_beams]
        is_full = len(self._finished) == num_beams
        if all(ends) or (is_full and settings.early_stopping is True):
            self.is_over = True
            return
        self._may_improve = self._may_improve and (not is_full or self._is_improvable())
        self.is_over = not self._may_improve

    def _best(self, candidates: Sequence[Sequence[tuple[int, TokenLogprob]]]) -> list[Beam]:
        """The best continuations of all beams, best first; of equals, that of the earlier beam and the lower token."""
        continued = []
        for at, (parent, following) in enumerate(zip(self.beams, candidates, strict=True)):
            sum_so_far = np.float32(0) if parent is None else parent.score
            for token_id, logprob in following:
                score = np.float32(logprob.logprob) + sum_so_far
                continued.append((-score, at, token_id, Beam(parent, token_id, logprob, score)))
        continued.sort(key=lambda entry: entry[:3])
        return [beam for *_, beam in continued[: self.num_candidates]]

    def _finish(self, ended: list[Beam]) -> None:
        settings = self._settings
        divisor = np.float32(self.num_tokens**settings.length_penalty)
        found = [Hypothesis(beam, beam.score / divisor, beam.token_id in self._ends) for beam in ended]
        # A stable sort: of equals, the one that was found first.
        self._finished = sorted([*self._finished, *found], key=lambda one: -one.score)[: settings.num_beams]

    def _is_improvable(self) -> bool:
        """Whether the best running beam may come to be better than the worst hypothesis, by the rule of
        `early_stopping`."""
        settings, best = self._settings, self.beams[0]
        assert best is not None
        to_the_end = settings.early_stopping == "never" and settings.length_penalty > 0
        length = settings.max_tokens if to_the_end else self.num_tokens
        return bool(best.score / np.float32(length**settings.length_penalty) > self._finished[-1].score)


def candidates_for(num_beams: int, num_end_tokens: int) -> int:
    """So many of each beam's best next tokens that the best `num_beams` that do not end are among them."""
    return max(2, 1 + num_end_tokens) * num_beams
