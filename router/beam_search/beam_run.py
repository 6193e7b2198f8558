"""Drives a beam search by generations of one token each, which go through the dispatcher as all requests do.

Each beam of a step is a request of its own: it is queued, placed near the KV of its prefix, tried again if a worker
dies, and recorded. Nothing but the search itself is kept between two steps, so that a router that is killed loses no
more than an answer that is computed again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from slipstream.router.beam_search.beam_search import BeamSearch, BeamSettings, Hypothesis, candidates_for
from slipstream.router.protocol.generation import GenerateRequest, GenerationError, GenerationFinish, Usage
from slipstream.router.protocol.messages import SamplingParams, TokenLogprob, pack_ids
from slipstream.router.requests.history import RequestRecord
from slipstream.router.requests.stream import GenerationStream

MAX_END_TOKENS = 7  # that the first step provides for, while those of the model are not known
MAX_BEGINNINGS = 3  # the search begins anew where the version of the model changes
LOCAL = 2**31 - 1  # no prefix is so long that another worker than the one that goes on should compute it


class Submitting(Protocol):
    def submit(self, request: GenerateRequest) -> GenerationStream:
        """Raises AdmissionError."""


class BeamStepFailed(Exception):  # noqa: N818 - an event of the request's life, not a bug
    """A beam was not continued. `finish` says why."""

    def __init__(self, finish: GenerationFinish) -> None:
        super().__init__(finish.error.message if finish.error is not None else finish.reason)
        self.finish = finish


class StepOfBeam(NamedTuple):
    """What the request of one beam in one step differs in. `number` counts the requests of the search from 0; the one
    of the number `replaces` (0: none) has ended and is not shown any longer. `suffix` are the tokens of the beam,
    packed."""

    number: int
    beam: int
    replaces: int
    suffix: bytes
    sampling: SamplingParams


class BeamRun:
    """One search. `request_of` makes the request of a step, `end_token_ids` are asked for once a worker has answered.
    `num_logprobs` is how many alternatives each token of a hypothesis is to have."""

    def __init__(
        self,
        service: Submitting,
        request_of: Callable[[StepOfBeam], GenerateRequest],
        settings: BeamSettings,
        end_token_ids: Callable[[], Sequence[int]],
        num_logprobs: int = 0,
    ) -> None:
        self._service = service
        self._request_of = request_of
        self._settings = settings
        self._end_token_ids = end_token_ids
        self._num_logprobs = num_logprobs
        self._num_requests = 0
        self._latest = [0] * settings.num_beams  # the number of each beam's latest request; 0: none, or the first
        self.first: RequestRecord | None = None  # of the prompt alone
        self.usage = Usage(0, 0, 0)
        self.version = ""

    async def run(self) -> Sequence[Hypothesis]:
        """The hypotheses, best first. Raises AdmissionError if a step is refused, BeamStepFailed if one fails."""
        for _ in range(MAX_BEGINNINGS):
            found = await self._search()
            if found is not None:
                return found
        message = f"the version of the model has changed {MAX_BEGINNINGS} times during the search"
        raise BeamStepFailed(GenerationFinish("error", self.usage, error=GenerationError("worker_failed", message)))

    async def _search(self) -> Sequence[Hypothesis] | None:
        """None: the version of the model has changed, whose log-probabilities cannot be compared."""
        num_first = candidates_for(self._settings.num_beams, max(MAX_END_TOKENS, len(self._end_token_ids())))
        [first], self.version = await self._step([b""], num_first)
        search = BeamSearch(self._settings, self._end_token_ids())
        search.advance([first[: search.num_candidates]])
        while not search.is_over:
            suffixes = [pack_ids([b.token_id for b in beam.path()]) if beam else b"" for beam in search.beams]
            candidates, version = await self._step(suffixes, search.num_candidates)
            if version != self.version:
                return None
            search.advance(candidates)
        return search.hypotheses

    async def _step(
        self, suffixes: Sequence[bytes], num_candidates: int
    ) -> tuple[list[list[tuple[int, TokenLogprob]]], str]:
        """The candidates for each beam, and the version of the model that they are from; "?" if that is not one."""
        sampling = SamplingParams(max_tokens=1, temperature=0.0, logprobs=max(num_candidates, self._num_logprobs))
        streams: list[GenerationStream] = []
        try:
            for beam, suffix in enumerate(suffixes):
                replaces, self._latest[beam] = self._latest[beam], self._num_requests
                step = StepOfBeam(self._num_requests, beam, replaces, suffix, sampling)
                streams.append(self._service.submit(self._request_of(step)))
                self._num_requests += 1
            self.first = self.first or streams[0].record
            candidates = [await self._candidates(stream) for stream in streams]
        finally:
            for stream in streams:
                stream.cancel()
        versions = {stream.record.version for stream in streams}
        return [ranked[:num_candidates] for ranked in candidates], versions.pop() if len(versions) == 1 else "?"

    async def _candidates(self, stream: GenerationStream) -> list[tuple[int, TokenLogprob]]:
        reported: TokenLogprob | None = None
        async for delta in stream:
            reported = delta[0][1]
        finish = stream.finish
        assert finish is not None, "an ended stream has a finish"
        self._count(finish.usage)
        if finish.reason in ("abort", "error"):
            raise BeamStepFailed(finish)
        if reported is None:
            error = GenerationError("worker_failed", "the worker reported no log-probabilities")
            raise BeamStepFailed(GenerationFinish("error", finish.usage, error=error))
        shown = reported.top[: self._num_logprobs]
        return [(token_id, TokenLogprob(logprob, shown)) for token_id, logprob in reported.top]

    def _count(self, used: Usage) -> None:
        before = self.usage
        self.usage = Usage(
            before.num_prompt_tokens or used.num_prompt_tokens,
            before.num_output_tokens + used.num_output_tokens,
            before.num_cached_tokens if before.num_prompt_tokens else used.num_cached_tokens,
        )
