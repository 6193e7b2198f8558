"""Workers and requests for tests of placement, without a dispatcher."""

from __future__ import annotations

from collections.abc import Iterable

from slipstream.kv_transfer.api.ticket import PeerId
from slipstream.router.config.router_config import DispatchConfig, SloConfig
from slipstream.router.placement.placed_request import PlacedRequests
from slipstream.router.placement.placer import Placer
from slipstream.router.placement.policies.policy import PlacementJob
from slipstream.router.protocol.generation import Deadline, GenerateRequest
from slipstream.router.protocol.messages import Credits, Role, SamplingParams, StepTime, pack_ids
from slipstream.router.registry.worker_load import PendingPrefill
from slipstream.router.registry.worker_registry import WorkerRegistry, WorkerState
from slipstream.router.requests.history import RequestRecord, Timeline
from slipstream.router.requests.output_length import OutputForecast
from slipstream.router.requests.output_log import OutputLog
from slipstream.router.requests.placement_decision import Placement, Wait
from slipstream.router.requests.request_state import RequestState
from tests.support.router.greetings import make_hello

PAGE_TOKENS = 16


def worker(
    role: Role,
    name: str,
    *,
    slots: int = 64,
    pages: int = 4096,
    tokens: int = 16384,
    free: tuple[int, int, int] | None = None,
    max_model_len: int = 32768,
    max_step_tokens: int = 2048,
    epoch: int = 1,
) -> WorkerState:
    """A connected worker that has reported its credits; `free` are slots, pages and queued tokens."""
    hello = make_hello(
        PeerId(name, epoch),
        role,
        page_tokens=PAGE_TOKENS,
        num_pages=pages,
        max_slots=slots,
        max_queued_tokens=tokens,
        max_model_len=max_model_len,
        max_step_tokens=max_step_tokens,
    )
    state = WorkerState(hello, 0.0)
    state.ledger.report(Credits(0, *(free or (slots, pages, tokens))))
    return state


def measured(
    state: WorkerState, *, step_s: float = 0.01, by_seq_s: float = 1e-4, token_s: float = 1e-4, chunk_s: float = 0.005
) -> WorkerState:
    """Lets the worker report steps of such times, until they are known."""
    for at in range(60):
        seqs, context = 1 + at % 16, 500 * (1 + at % 16)
        state.times.observe_step(StepTime(0, 0, seqs, context, step_s + by_seq_s * seqs))
        tokens = 64 * (1 + at % 20)
        state.times.observe_step(StepTime(tokens, tokens // 2, 0, 0, chunk_s + token_s * tokens))
    return state


def queue_prompt(group: WorkerState, num_tokens: int, now: float = 0.0) -> None:
    """A prompt that waits on the worker, which has said so."""
    group.load.begin_prefill(PendingPrefill(num_tokens, num_tokens**2 / 2, 0.0, 0.0, now))
    reply = group.ledger
    group.ledger.report(Credits(0, reply.free_slots, reply.free_pages, max(reply.free_tokens - num_tokens, 0)))


def run_streams(decode: WorkerState, count: int, *, context: int = 500, remaining: float = 100.0) -> None:
    """Sequences that decode on the worker."""
    reply = decode.ledger
    for _ in range(count):
        decode.load.add_sequence(context, remaining)
        decode.load.num_running += 1
    pages = reply.free_pages - count * (context // PAGE_TOKENS)
    decode.ledger.report(Credits(0, reply.free_slots - count, pages, reply.free_tokens))


def job(num_tokens: int, output: int = 100, **fields: object) -> PlacementJob:
    forecast = OutputForecast(output // 2, output, output * 2, float(output))
    return PlacementJob(num_tokens, forecast, float(output), 0.5, 0.05, **fields)  # type: ignore[arg-type]


def request(
    num_tokens: int, *, tokens: Iterable[int] | None = None, request_id: str = "r", now: float = 0.0, **fields: object
) -> RequestState:
    """A waiting request."""
    prompt = pack_ids(range(num_tokens) if tokens is None else tokens)
    asked = GenerateRequest(request_id, prompt, SamplingParams(max_tokens=1000), **fields)  # type: ignore[arg-type]
    record = RequestRecord(request_id, "", 0, num_tokens, Timeline(now))
    levels, deadline = asked.slo.or_default(SloConfig().levels), Deadline("request_timeout_s", 600.0)
    return RequestState(asked, prompt, OutputLog(1000), record, levels, deadline)


class NoPrefixes:
    """No worker has anything cached, except those that are named."""

    def __init__(self, cached: dict[WorkerState, int] | None = None, known: dict[str, WorkerState] | None = None):
        self.cached = cached or {}
        self.known = known or {}

    def best(self, state: RequestState, role: Role, limit: int) -> list[tuple[WorkerState, int]]:
        hits = [(w, n) for w, n in self.cached.items() if w.hello.role == role]
        return sorted(hits, key=lambda hit: -hit[1])[:limit]

    def held_tokens(self, worker: WorkerState, state: RequestState) -> int:
        return self.cached.get(worker, 0)

    def worker_of(self, session: str, role: Role, tenant: str = "") -> WorkerState | None:
        return self.known.get(f"{session}/{role}")


def placer(
    decodes: list[WorkerState],
    prefills: list[WorkerState],
    *,
    views: NoPrefixes | None = None,
    **config: object,
) -> Placer:
    registry = WorkerRegistry()
    for state in (*decodes, *prefills):
        times = state.times
        registry.add(state)
        state.times = times  # those it was measured with
    views = views or NoPrefixes()
    return Placer(DispatchConfig(**config), registry, views, views, PlacedRequests())  # type: ignore[arg-type]


def where(found: Placement | Wait) -> tuple[str, str, str | None]:
    """Reason, decode worker, prefill group."""
    assert isinstance(found, Placement), found
    return found.decision.reason, found.decode.name, found.prefill.name if found.prefill else None
