"""A mock worker's conduct under virtual time."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from slipstream.kv_transfer.api.ticket import PeerId, TransferAddress
from slipstream.router.protocol.messages import (
    Cancel,
    Credits,
    Drain,
    EngineRequest,
    Failed,
    Generate,
    GrammarSpec,
    HandedOff,
    PeerLost,
    Prefill,
    PromptScores,
    Reserve,
    Reserved,
    Role,
    SamplingParams,
    Start,
    StepOutput,
    TokenChunk,
    WorkerMessage,
    pack_ids,
)
from slipstream.workers.mock.mock_profile import MockProfile
from slipstream.workers.mock.mock_scores import scored_token
from slipstream.workers.mock.mock_worker import MockWorker
from slipstream.workers.mock.output_policy import expected_token
from slipstream.workers.transfers.ticket_issuer import TicketIssuer

PROMPT = pack_ids(range(20, 60))
PREFILL_PEER = PeerId("p", 1)


def make_tickets() -> TicketIssuer:
    return TicketIssuer(PeerId("mock", 1), (TransferAddress("127.0.0.1", 1),), 8, 2, 2, 64)


def make_worker(role: Role = "decode", **profile: float) -> MockWorker:
    return MockWorker(MockProfile(**profile), role, make_tickets())  # type: ignore[arg-type]


def request(request_id: str = "r", prompt: bytes = PROMPT, max_tokens: int = 3, output: bytes = b"") -> EngineRequest:
    return EngineRequest(request_id, 0, prompt, output, SamplingParams(max_tokens=max_tokens))


def run(worker: MockWorker, until_s: float = 1e6) -> list[tuple[float, WorkerMessage]]:
    """Lets time pass from deadline to deadline."""
    told = []
    while (due_s := worker.next_deadline_s()) is not None and due_s <= until_s:
        told += [(due_s, message) for message in worker.advance(due_s)]
    return told


def credits(worker: MockWorker) -> Credits | None:
    """As reported, if they have changed."""
    return next((message for message in worker.reports(0.0) if isinstance(message, Credits)), None)


def chunks(told: Iterable[tuple[float, WorkerMessage]]) -> list[tuple[float, TokenChunk]]:
    return [(at_s, c) for at_s, message in told if isinstance(message, StepOutput) for c in message.chunks]


def test_steps_take_the_time_that_the_profile_says() -> None:
    worker = make_worker(step_s=1.0, decode_token_s=0.5, prefill_token_s=0.25)
    assert worker.handle(Generate(1, request()), 10.0) == []
    times = [at_s for at_s, _ in chunks(run(worker))]
    first_s = 10.0 + 1.0 + 40 * 0.25
    assert times == [first_s, first_s + 1.5, first_s + 3.0]


def test_tokens_are_those_expected_and_the_last_one_says_so() -> None:
    worker = make_worker()
    worker.handle(Generate(1, request()), 0.0)
    tokens = [c for _, c in chunks(run(worker))]
    assert [c.token_ids[0] for c in tokens] == [expected_token(PROMPT, i, 1024) for i in range(3)]
    assert [c.index for c in tokens] == [0, 1, 2]
    assert [c.finish_reason for c in tokens] == [None, None, "length"]


def test_a_request_that_moved_goes_on_where_it_was() -> None:
    worker = make_worker()
    output = pack_ids([expected_token(PROMPT, i, 1024) for i in range(2)])
    worker.handle(Generate(1, request(output=output)), 0.0)
    [(_, chunk)] = chunks(run(worker))
    assert (chunk.index, chunk.token_ids[0]) == (2, expected_token(PROMPT, 2, 1024))


def test_a_long_prompt_is_computed_in_several_steps() -> None:
    worker = make_worker(step_s=1.0, max_step_tokens=16)
    worker.handle(Generate(1, request(max_tokens=1)), 0.0)
    assert [at_s for at_s, _ in chunks(run(worker))] == [3.0]


def test_a_hand_off_goes_from_the_prefill_worker_to_the_decode_worker() -> None:
    decode, prefill = make_worker(transfer_page_s=0.5), make_worker("prefill", transfer_page_s=0.5, step_s=1.0)
    [reserved] = decode.handle(Reserve(1, request(), PREFILL_PEER, 1), 0.0)
    assert isinstance(reserved, Reserved)
    assert reserved.ticket.num_pages == 3
    assert prefill.handle(Prefill(1, request(), reserved.ticket), 0.0) == []
    [(at_s, first)] = chunks(run(prefill))
    assert at_s == 1.0
    assert first.index == 0
    assert prefill.protocol.role.num_attempts == 0, "the pages have left"
    decode.handle(Start("r", 0, first.token_ids), 1.0)
    (landed_s, handed_off), *rest = run(decode)
    assert isinstance(handed_off, HandedOff)
    assert landed_s == 1.0 + 3 * 0.5
    assert [c.index for _, c in chunks(rest)] == [1, 2]
    assert decode.protocol.role.num_attempts == 0


def test_a_reservation_without_a_first_token_ends_with_its_lease() -> None:
    worker = make_worker(start_lease_s=5.0)
    worker.handle(Reserve(1, request(), PREFILL_PEER, 1), 0.0)
    [(at_s, failed)] = run(worker)
    assert at_s == 5.0
    assert isinstance(failed, Failed)
    assert failed.retryable


def test_a_reservation_becomes_a_local_prefill() -> None:
    worker = make_worker()
    worker.handle(Reserve(1, request(), PREFILL_PEER, 1), 0.0)
    assert worker.handle(Generate(2, request()), 1.0) == []
    assert [c.index for _, c in chunks(run(worker))] == [0, 1, 2]


@pytest.mark.parametrize("steps_before", [0, 1, 2])
def test_a_cancelled_attempt_says_nothing_more_and_gives_everything_back(steps_before: int) -> None:
    worker = make_worker(step_s=1.0)
    idle = credits(worker)
    assert idle is not None
    worker.handle(Generate(1, request()), 0.0)
    run(worker, until_s=float(steps_before))
    worker.handle(Cancel("r", 0), steps_before + 0.5)
    assert chunks(run(worker)) == []
    free = credits(worker)
    assert free is not None
    assert (free.free_slots, free.free_pages, free.free_tokens) == (idle.free_slots, idle.free_pages, idle.free_tokens)
    assert free.ack_seq == 1


def test_what_does_not_fit_is_refused() -> None:
    worker = make_worker(num_pages=2)
    [failed] = worker.handle(Generate(1, request()), 0.0)
    assert isinstance(failed, Failed)
    assert failed.retryable
    assert worker.protocol.role.num_attempts == 0


@pytest.mark.parametrize("role", ["decode", "prefill"])
def test_what_should_follow_a_grammar_is_refused_for_good(role: Role) -> None:
    worker = make_worker(role)
    constrained = EngineRequest("r", 0, PROMPT, b"", SamplingParams(max_tokens=3, grammar=GrammarSpec("regex", "a+")))
    ticket = make_tickets().issue(0, 3)
    message = Generate(1, constrained) if role == "decode" else Prefill(1, constrained, ticket)
    assert worker.handle(message, 0.0) == [Failed("r", 0, "grammar: is not served by a mock worker", False)]
    assert worker.protocol.role.num_attempts == 0
    assert worker.engine.prefix_cache.num_used == 0


def test_the_grammar_of_a_request_with_tools_is_ignored() -> None:
    worker = make_worker()
    asked = EngineRequest("r", 0, PROMPT, b"", SamplingParams(max_tokens=3, grammar=GrammarSpec("output", "")))
    assert not worker.handle(Generate(1, asked), 0.0)
    assert worker.protocol.role.num_attempts == 1


def test_a_drained_worker_offers_nothing() -> None:
    worker = make_worker()
    worker.handle(Drain(), 0.0)
    [failed] = worker.handle(Generate(1, request()), 0.0)
    assert isinstance(failed, Failed)
    free = credits(worker)
    assert free is not None
    assert (free.free_slots, free.free_pages, free.free_tokens) == (0, 0, 0)


def test_a_lost_destination_frees_what_was_being_sent() -> None:
    decode, prefill = make_worker(), make_worker("prefill", transfer_s=100.0)
    [reserved] = decode.handle(Reserve(1, request(), PREFILL_PEER, 1), 0.0)
    assert isinstance(reserved, Reserved)
    prefill.handle(Prefill(1, request(), reserved.ticket), 0.0)
    run(prefill, until_s=50.0)
    assert prefill.protocol.role.num_attempts == 1
    [failed] = prefill.handle(PeerLost(reserved.ticket.destination), 50.0)
    assert isinstance(failed, Failed)
    assert prefill.protocol.role.num_attempts == 0


@pytest.mark.parametrize(("key", "value"), [("step_s", -1.0), ("num_pages", 0), ("vocab_size", 16)])
def test_a_profile_names_the_key_that_is_wrong(key: str, value: float) -> None:
    with pytest.raises(ValueError, match=key):
        MockProfile(**{key: value})  # type: ignore[arg-type]


@pytest.mark.parametrize("max_tokens", [0, 2])
def test_log_probabilities_of_a_prompt_follow_from_its_tokens_and_come_before_the_output(max_tokens: int) -> None:
    worker = make_worker(prefix_caching=True, max_step_tokens=16)
    for number in range(2):  # of which the second one finds the first one's pages
        sampling = SamplingParams(max_tokens=max_tokens, prompt_logprobs=2)
        asked = EngineRequest(f"r{number}", 0, PROMPT, b"", sampling, num_scored=3 * number)
        worker.handle(Generate(1 + number, asked), 0.0)
        told = [message for _, message in run(worker) if isinstance(message, PromptScores | StepOutput)]
        assert isinstance(told[0], PromptScores)
        assert all(isinstance(message, StepOutput) for message in told[1:])
        scores = told[0].scores
        vocab_size = MockProfile().vocab_size
        assert (scores.first, scores.end, scores.flaw) == (1 + 3 * number, 40, "")
        assert [*scores.tokens()] == [scored_token(20 + at, 21 + at, 2, vocab_size) for at in range(3 * number, 39)]
        [*_, (_, last)] = chunks([(0.0, message) for message in told])
        assert (last.index + len(last.token_ids), last.finish_reason) == (max_tokens, "length")
        assert last.num_cached_tokens < 16


def test_made_up_log_probabilities_are_as_real_ones_are() -> None:
    for token_id in range(64):
        scored = scored_token(7, token_id, 3, 100)
        logprobs = [logprob for _, logprob in scored.top]
        assert logprobs == sorted(logprobs, reverse=True)
        assert (scored.rank == 1) == (scored.top[0] == (token_id, scored.logprob))
        assert scored.logprob <= logprobs[0] < 0
