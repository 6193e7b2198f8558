"""Making requests and running an engine to its end."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from slipstream.kv_transfer.api.ticket import HandoffTicket, PeerId
from slipstream.router.protocol.messages import (
    EngineRequest,
    FinishReason,
    SamplingParams,
    TokenChunk,
    TokenLogprob,
    pack_ids,
)
from slipstream.workers.engine.limits.engine_limits import EngineLimits
from slipstream.workers.engine.native_engine import NativeEngine
from slipstream.workers.interface.engine import AttemptKey


def make_limits(**overrides: Any) -> EngineLimits:
    """A small engine: 16 pages of 4 tokens, 4 slots, 8 tokens a step, vocabulary of 100."""
    values: dict[str, Any] = {
        "num_pages": 16,
        "page_tokens": 4,
        "max_model_len": 40,
        "max_num_seqs": 4,
        "max_step_tokens": 8,
        "max_queued_tokens": 64,
        "vocab_size": 100,
        "eos_token_ids": (),
        "model_id": "test",
    }
    return EngineLimits(**{**values, **overrides})


def make_request(
    name: str,
    prompt: Iterable[int],
    output: Iterable[int] = (),
    *,
    attempt: int = 0,
    priority: int = 0,
    cache_salt: str = "",
    **sampling: Any,
) -> EngineRequest:
    """Greedy with up to 8 tokens where `sampling` (fields of SamplingParams) does not say otherwise."""
    params = SamplingParams(**{"max_tokens": 8, "temperature": 0.0, **sampling})
    return EngineRequest(name, attempt, pack_ids(prompt), pack_ids(output), params, cache_salt, priority)


def make_ticket(transfer_id: int, first_page: int, num_pages: int) -> HandoffTicket:
    """A ticket for tests that look at its numbers of pages alone."""
    return HandoffTicket(transfer_id, PeerId("decode-0", 1), (), first_page, num_pages, 8, 1, 1, 64)


@dataclass(slots=True)
class Generated:
    """What came out for one sequence."""

    first_index: int
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob | None] = field(default_factory=list)
    num_cached_tokens: int = 0
    finish_reason: FinishReason | None = None
    stop_token_id: int | None = None

    def take(self, output: TokenChunk) -> None:
        assert self.finish_reason is None, f"{output} after the end"
        assert output.index == self.first_index + len(self.token_ids), f"{output} out of order"
        self.token_ids += output.token_ids
        self.logprobs += output.logprobs or [None] * len(output.token_ids)
        self.num_cached_tokens = output.num_cached_tokens
        self.finish_reason = output.finish_reason
        self.stop_token_id = output.stop_token_id


def run(engine: NativeEngine, *, check: bool = True) -> dict[AttemptKey, Generated]:
    """Steps until there is no work; checks the books after each step, and that no finish comes twice."""
    generated: dict[AttemptKey, Generated] = {}
    while engine.has_work:
        for output in engine.step():
            key = (output.request_id, output.attempt)
            generated.setdefault(key, Generated(output.index)).take(output)
        if check:
            engine.check_integrity()
    return generated


def tokens_of(engine: NativeEngine, *requests: EngineRequest) -> list[list[int]]:
    """Adds the requests, runs the engine, and returns what each generated."""
    for request in requests:
        engine.add(request)
    generated = run(engine, check=False)
    engine.check_integrity()
    results = [generated[request.request_id, request.attempt] for request in requests]
    assert all(result.finish_reason is not None for result in results)
    return [result.token_ids for result in results]


def owned(engine: NativeEngine) -> int:
    """Pages that any sequence owns."""
    return sum(num for state, num in engine.page_counts().items() if state not in ("free", "cached", "withheld"))
