"""The attempts on a mock worker and their pages: which are accepted, how much was cached, and what is given back."""

from __future__ import annotations

from array import array
from collections.abc import Iterator

from slipstream.router.protocol.block_hash import HashChain, root_digest
from slipstream.router.protocol.messages import EngineRequest, SamplingParams
from slipstream.workers.interface.engine import AttemptKey, EngineRequestError
from slipstream.workers.mock.mock_attempt import MockAttempt, MockState
from slipstream.workers.mock.mock_pages import MockPages
from slipstream.workers.mock.mock_profile import MockProfile
from slipstream.workers.mock.output_policy import OutputPolicy

_ID_BYTES = 4


class MockAttempts:
    def __init__(self, profile: MockProfile, model: str, reserves_output: bool, policy: OutputPolicy) -> None:
        self.profile = profile
        self._policy = policy
        self._reserves_output = reserves_output
        self.pages = MockPages(profile.num_pages)
        self.num_queried_tokens = 0
        self.num_hit_tokens = 0
        self._model = model
        self._attempts: dict[AttemptKey, MockAttempt] = {}

    def __len__(self) -> int:
        return len(self._attempts)

    def __iter__(self) -> Iterator[MockAttempt]:
        return iter(self._attempts.values())

    def __contains__(self, attempt: MockAttempt) -> bool:
        return self._attempts.get(attempt.key) is attempt

    def get(self, key: AttemptKey) -> MockAttempt | None:
        return self._attempts.get(key)

    def admit(self, request: EngineRequest, state: MockState, num_room_tokens: int = 0) -> MockAttempt | None:
        """A new attempt with pages for all its tokens and some more, or for all that it may come to have; None if there
        are not enough. Raises EngineRequestError if it can never run here or its key is in use."""
        key = (request.request_id, request.attempt)
        if key in self._attempts:
            raise EngineRequestError("request_id", f"{key} is here already")
        grammar = request.sampling.grammar
        # That of an output with tools allows a free text, or is ignored.
        if grammar is not None and grammar.kind != "output" and not self._policy.serves_grammars:
            raise EngineRequestError("grammar", "is not served by a mock worker")
        num_prompt = len(request.prompt_ids) // _ID_BYTES
        num_output = len(request.output_ids) // _ID_BYTES
        num_tokens = num_prompt + num_output
        max_output = min(request.sampling.max_tokens, self.profile.max_model_len - num_prompt)
        if num_prompt == 0 or (num_output >= max_output and (num_output or request.sampling.max_tokens)):
            raise EngineRequestError("prompt_ids", f"{num_tokens} tokens leave nothing to generate")
        output = self._policy.output_of(request.prompt_ids)
        tokens, chain = None, None
        if self.profile.prefix_caching:
            tokens = array("i", request.prompt_ids + request.output_ids)
            page_tokens = self.profile.page_tokens
            chain = HashChain(root_digest(self._model, request.cache_salt), page_tokens)
            chain.extend(tokens, num_tokens // page_tokens)
        num_pages = self.profile.pages_for(num_tokens + num_room_tokens)
        if self._reserves_output:
            num_pages = min(self.profile.pages_for(num_prompt + max_output), self.profile.num_pages)
        most = num_tokens if state is MockState.RESERVED else self._num_cacheable(request, num_tokens)
        lease = self.pages.take(chain, num_pages, self._max_shared(most))
        if lease is None:
            return None
        attempt = MockAttempt(
            request=request,
            key=key,
            state=state,
            output=output,
            stop_ids=self._stop_ids(request.sampling),
            num_prompt=num_prompt,
            num_output=num_output,
            num_uncomputed=0,
            max_output=max_output,
            lease=lease,
            tokens=tokens,
        )
        self.num_queried_tokens += num_tokens
        self._attempts[key] = attempt
        return attempt

    def _stop_ids(self, sampling: SamplingParams) -> frozenset[int]:
        """Made-up tokens, which have no end, are not taken for one either."""
        ends = self._policy.end_token_ids
        if not ends:
            return ends
        return frozenset(sampling.stop_token_ids) | (frozenset() if sampling.ignore_eos else ends)

    def remove(self, attempt: MockAttempt) -> None:
        """An attempt has ended here; its pages are given back."""
        del self._attempts[attempt.key]
        request = attempt.request
        self.pages.give_back(attempt.lease, request.request_id, request.retention)

    def find_more(self, attempt: MockAttempt) -> None:
        """Looks into the prefix cache again, for prompts that were computed since the attempt came."""
        most = self._num_cacheable(attempt.request, attempt.num_tokens)
        self.pages.find_more(attempt.lease, self._max_shared(most))

    def known_tokens(self, attempt: MockAttempt) -> int:
        """How many of its tokens were found in the prefix cache."""
        return attempt.lease.num_known * self.profile.page_tokens

    def count_cached(self, attempt: MockAttempt) -> None:
        num_found = self.known_tokens(attempt)
        self.num_hit_tokens += num_found - attempt.num_cached
        attempt.num_cached = num_found

    def fill_page(self, attempt: MockAttempt) -> None:
        """The attempt's last page is full: it enters the prefix cache, and the attempt gets another one."""
        num_full = attempt.num_tokens // self.profile.page_tokens
        if attempt.lease.chain is not None:
            assert attempt.tokens is not None
            attempt.lease.chain.extend(attempt.tokens, num_full)
            self.pages.remember(attempt.lease, num_full)
        self.hold(attempt, num_full + 1)

    def hold(self, attempt: MockAttempt, num_pages: int) -> None:
        """Gives the attempt at least so many pages."""
        num_missing = num_pages - attempt.lease.num_pages
        if num_missing > 0:
            self.pages.grow(attempt.lease, num_missing)

    def _num_cacheable(self, request: EngineRequest, num_tokens: int) -> int:
        """Tokens of which all but the last may be cached where the prompt is computed: not those whose
        log-probabilities are wanted."""
        num_to_score = len(request.prompt_ids) // _ID_BYTES - 1
        is_scored = request.sampling.prompt_logprobs is None or request.num_scored >= num_to_score
        return num_tokens if is_scored else request.num_scored + 1

    def _max_shared(self, num_tokens: int) -> int:
        """How many pages may be taken from the cache, as the last token is always computed."""
        return (num_tokens - 1) // self.profile.page_tokens
