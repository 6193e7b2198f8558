"""Requests for an engine, and running one to its end."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from slipstream.kv_transfer.api.ticket import HandoffTicket, PeerId
from slipstream.router.protocol.messages import EngineRequest, SamplingParams, TokenChunk, TokenLogprob, pack_ids
from slipstream.workers.engine.native_engine import NativeEngine
from slipstream.workers.interface.engine import AttemptKey, Reservation

MAX_STEPS = 5000  # of one run: more is an engine that does not come to an end


@dataclass(slots=True)
class Generated:
    """What came out for one sequence."""

    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob | None] = field(default_factory=list)
    finish_reason: str | None = None

    def take(self, output: TokenChunk) -> None:
        self.token_ids += output.token_ids
        self.logprobs += output.logprobs or [None] * len(output.token_ids)
        self.finish_reason = output.finish_reason


Results = dict[AttemptKey, Generated]


def greedy_request(
    name: str, prompt: Iterable[int], output: Iterable[int] = (), *, max_tokens: int, attempt: int = 0, **more: Any
) -> EngineRequest:
    params = SamplingParams(max_tokens=max_tokens, temperature=0.0, ignore_eos=True, **more)
    return EngineRequest(name, attempt, pack_ids(prompt), pack_ids(output), params)


def ticket_for(transfer_id: int, reservation: Reservation, page_tokens: int) -> HandoffTicket:
    """Of a transfer whose bytes the check itself copies: only the numbers of pages and tokens count."""
    return HandoffTicket(
        transfer_id=transfer_id,
        destination=PeerId("decode-0", 1),
        addresses=(),
        first_page=reservation.first_page,
        num_pages=len(reservation.page_ids),
        slab_pages=page_tokens,
        num_layers=1,
        num_kv_heads=1,
        head_bytes=64,
        num_tokens=reservation.num_tokens,
    )


def run(engine: NativeEngine, results: Results, until_tokens: int | None = None) -> Results:
    """Steps until there is no work, or each sequence has so many tokens. Raises RuntimeError if neither happens."""
    for _ in range(MAX_STEPS):
        if not engine.has_work:
            engine.check_integrity()
            return results
        if until_tokens is not None and results and all(len(r.token_ids) >= until_tokens for r in results.values()):
            return results
        for output in engine.step():
            results.setdefault((output.request_id, output.attempt), Generated()).take(output)
    raise RuntimeError(f"no end after {MAX_STEPS} steps")
