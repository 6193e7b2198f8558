"""What every kind of worker does with the router's messages, whatever engine it has."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest

from slipstream.router.protocol.messages import (
    Adopt,
    Cancel,
    Copied,
    Credits,
    Drain,
    EngineRequest,
    Extend,
    Failed,
    Frozen,
    Generate,
    GrammarSpec,
    HandedOff,
    Migrate,
    PageLimit,
    PagesHeld,
    PeerLost,
    Prefill,
    Reserve,
    Reserved,
    Resume,
    Role,
    SamplingParams,
    Start,
    Stats,
    StepOutput,
    TokenChunk,
    pack_ids,
)
from tests.support.workers.contract_worlds import (
    NUM_PAGES,
    PAGE_TOKENS,
    ContractWorker,
    ContractWorld,
    MockWorld,
    NativeWorld,
    SimWorld,
    free,
)

NUM_OUTPUT = SimWorld.LENGTH
PROMPT = tuple(range(20, 57))
Make = Callable[[], ContractWorld]
M = TypeVar("M")


KINDS = ("native", "mock", "simulated")


def make_world(kind: str, model_dir: Path, reserves_output: bool = False) -> ContractWorld:
    worlds: dict[str, Make] = {
        "native": lambda: NativeWorld(model_dir, reserves_output),
        "mock": lambda: MockWorld(reserves_output),
        "simulated": lambda: SimWorld(reserves_output),
    }
    return worlds[kind]()


@pytest.fixture(params=KINDS)
def world(request: pytest.FixtureRequest, tiny_model_dir: Callable[[str], Path]) -> ContractWorld:
    return make_world(request.param, tiny_model_dir("llama"))


@pytest.fixture(params=KINDS)
def reserving_world(request: pytest.FixtureRequest, tiny_model_dir: Callable[[str], Path]) -> ContractWorld:
    """Its decode workers set pages aside for whole answers."""
    return make_world(request.param, tiny_model_dir("llama"), reserves_output=True)


def request(
    name: str = "r",
    attempt: int = 0,
    prompt: tuple[int, ...] = PROMPT,
    output: tuple[int, ...] = (),
    max_tokens: int = NUM_OUTPUT,
) -> EngineRequest:
    sampling = SamplingParams(max_tokens=max_tokens, temperature=0.0, ignore_eos=True)
    return EngineRequest(name, attempt, pack_ids(prompt), pack_ids(output), sampling)


def heard(worker: ContractWorker, kind: type[M]) -> list[M]:
    return [message for message in worker.said if isinstance(message, kind)]


def chunks(worker: ContractWorker, name: str = "r", attempt: int = 0) -> list[TokenChunk]:
    steps = heard(worker, StepOutput)
    return [chunk for step in steps for chunk in step.chunks if (chunk.request_id, chunk.attempt) == (name, attempt)]


def indices(worker: ContractWorker, name: str = "r", attempt: int = 0) -> list[int]:
    told = chunks(worker, name, attempt)
    return [index for chunk in told for index in range(chunk.index, chunk.index + len(chunk.token_ids))]


def tokens(worker: ContractWorker, name: str = "r", attempt: int = 0) -> list[int]:
    return [token for chunk in chunks(worker, name, attempt) for token in chunk.token_ids]


def ends(worker: ContractWorker, name: str = "r", attempt: int = 0) -> list[str]:
    """All that say that the attempt is over here."""
    reasons = [chunk.finish_reason for chunk in chunks(worker, name, attempt) if chunk.finish_reason is not None]
    failures = [f for f in heard(worker, Failed) if (f.request_id, f.attempt) == (name, attempt)]
    return [*reasons, *("failed" for _ in failures)]


def check_at_rest(*workers: ContractWorker) -> None:
    """Everything was given back, and the router knows it."""
    for worker in workers:
        assert worker.num_used_pages == 0
        assert free(worker) == free(worker, at_first=True)


def reserve(worker: ContractWorker, world: ContractWorld, source: ContractWorker, seq: int = 1) -> Reserved:
    worker.hear(Reserve(seq, request(), source.peer, 1))
    world.run_until(worker, Reserved)
    return heard(worker, Reserved)[-1]


def test_every_attempt_ends_once_with_all_its_tokens_in_order(world: ContractWorld) -> None:
    worker = world.add("d", "decode")
    for number in range(3):
        worker.hear(Generate(number + 1, request(f"r{number}", prompt=PROMPT[number:])))
    world.run()
    for number in range(3):
        assert indices(worker, f"r{number}") == list(range(NUM_OUTPUT))
        assert ends(worker, f"r{number}") in (["length"], ["stop"])
    check_at_rest(worker)
    assert heard(worker, Credits)[-1].ack_seq == 3


def test_an_attempt_goes_on_after_the_output_of_an_earlier_one(world: ContractWorld) -> None:
    worker = world.add("d", "decode")
    worker.hear(Generate(1, request()))
    world.run()
    output = tuple(tokens(worker)[:2])
    worker.hear(Generate(2, request(attempt=1, output=output)))
    world.run()
    assert indices(worker, attempt=1) == list(range(2, NUM_OUTPUT))
    assert tokens(worker, attempt=1) == tokens(worker)[2:]
    check_at_rest(worker)


@pytest.mark.parametrize("when", ["at once", "in a step", "decoding"])
def test_a_cancelled_attempt_says_nothing_more_and_gives_everything_back(world: ContractWorld, when: str) -> None:
    worker = world.add("d", "decode")
    if when == "in a step":
        worker.hear(Generate(1, request("other")))
    worker.hear(Generate(2, request()))
    if when == "decoding":
        world.run_until(worker, StepOutput)
    num_said = len(chunks(worker))
    worker.hear(Cancel("r", 0))
    worker.hear(Cancel("r", 0))
    worker.hear(Cancel("unknown", 7))
    world.run()
    assert len(chunks(worker)) == num_said
    assert ends(worker) == []
    check_at_rest(worker)


def test_a_cancelled_attempt_frees_its_room_at_once(world: ContractWorld) -> None:
    worker = world.add("d", "decode")
    worker.hear(Generate(1, request()))
    world.run_until(worker, StepOutput)
    assert worker.num_used_pages > 0
    worker.hear(Cancel("r", 0))
    assert worker.num_used_pages == 0
    assert free(worker)[0] == free(worker, at_first=True)[0]


def test_what_there_is_no_room_for_ends_or_waits_but_is_never_forgotten(world: ContractWorld) -> None:
    worker = world.add("d", "decode")
    names = [f"r{number}" for number in range(9)]
    for seq, name in enumerate(names, 1):
        worker.hear(Generate(seq, request(name, prompt=tuple(range(20, 140)))))
    world.run()
    assert all(len(ends(worker, name)) == 1 for name in names)
    assert all(failed.retryable for failed in heard(worker, Failed))
    check_at_rest(worker)


def test_a_reservation_without_room_fails_and_may_be_tried_again(world: ContractWorld) -> None:
    decode, prefill = world.add("d", "decode"), world.add("p", "prefill")
    for seq in range(1, 6):
        decode.hear(Reserve(seq, request(f"r{seq}", prompt=tuple(range(20, 140))), prefill.peer, 1))
    world.run(0.01)
    assert len(heard(decode, Reserved)) + len(heard(decode, Failed)) == 5
    assert heard(decode, Failed)
    assert all(failed.retryable for failed in heard(decode, Failed))
    for seq in range(1, 6):
        decode.hear(Cancel(f"r{seq}", 0))
    world.run()
    check_at_rest(decode)


def test_an_attempt_that_is_here_already_is_refused_and_the_first_goes_on(world: ContractWorld) -> None:
    worker = world.add("d", "decode")
    worker.hear(Generate(1, request()))
    worker.hear(Generate(2, request()))
    assert ends(worker) == ["failed"]
    world.run()
    assert indices(worker) == list(range(NUM_OUTPUT))
    check_at_rest(worker)


def test_what_is_for_the_other_role_is_refused(world: ContractWorld) -> None:
    decode, prefill = world.add("d", "decode"), world.add("p", "prefill")
    ticket = reserve(decode, world, prefill).ticket
    decode.hear(Prefill(2, request("a"), ticket))
    prefill.hear(Generate(1, request("a")))
    prefill.hear(Reserve(2, request("b"), decode.peer, 1))
    prefill.hear(Adopt(3, request("c"), decode.peer, 1, 0))
    world.run(0.1)
    assert ends(decode, "a") == ["failed"]
    assert [ends(prefill, name) for name in "abc"] == [["failed"]] * 3
    decode.hear(Cancel("r", 0))
    world.run()
    check_at_rest(decode, prefill)


@pytest.mark.parametrize("role", ["decode", "prefill"])
def test_a_request_that_can_never_run_fails_for_good(world: ContractWorld, role: Role) -> None:
    if isinstance(world, SimWorld):
        pytest.skip("a simulated worker has no tokens to look at")
    worker, decode = world.add("w", role), world.add("d", "decode")
    constrained = request()._replace(sampling=request().sampling._replace(grammar=GrammarSpec("regex", "a+")))
    for seq, impossible in enumerate((request(prompt=()), constrained), 1):
        ticket = reserve(decode, world, worker, seq).ticket
        decode.hear(Cancel("r", 0))
        worker.hear(Generate(seq, impossible) if role == "decode" else Prefill(seq, impossible, ticket))
    world.run()
    assert ends(worker) == ["failed", "failed"]
    assert not any(failed.retryable for failed in heard(worker, Failed))
    check_at_rest(worker, decode)


def test_a_draining_worker_refuses_what_is_new_and_finishes_what_it_has(world: ContractWorld) -> None:
    worker = world.add("d", "decode")
    worker.hear(Generate(1, request("old")))
    world.run_until(worker, StepOutput)
    worker.hear(Drain())
    worker.hear(Generate(2, request("new")))
    assert not worker.is_finished
    world.run()
    assert ends(worker, "new") == ["failed"]
    assert indices(worker, "old") == list(range(NUM_OUTPUT))
    assert ends(worker, "old") in (["length"], ["stop"])
    assert worker.is_finished
    assert worker.num_used_pages == 0


@pytest.mark.parametrize("start_first", [True, False])
def test_a_hand_off_goes_on_with_the_second_token(world: ContractWorld, start_first: bool) -> None:
    decode, prefill, alone = world.add("d", "decode"), world.add("p", "prefill"), world.add("alone", "decode")
    alone.hear(Generate(1, request()))
    ticket = reserve(decode, world, prefill).ticket
    prefill.hear(Prefill(1, request(), ticket))
    world.run_until(prefill, StepOutput)
    first = chunks(prefill)[0].token_ids
    if not start_first:
        world.run(0.5)
    decode.hear(Start("r", 0, first))
    world.run()
    assert len(heard(decode, HandedOff)) == 1
    assert indices(prefill) == [0]
    assert indices(decode) == list(range(1, NUM_OUTPUT))
    assert tokens(prefill) + tokens(decode) == tokens(alone)
    assert ends(prefill) == []
    assert len(ends(decode)) == 1
    check_at_rest(decode, prefill)


def test_a_reservation_becomes_a_local_prefill(world: ContractWorld) -> None:
    decode, prefill = world.add("d", "decode"), world.add("p", "prefill")
    reserve(decode, world, prefill)
    decode.hear(Generate(2, request()))
    world.run()
    assert indices(decode) == list(range(NUM_OUTPUT))
    assert len(ends(decode)) == 1
    check_at_rest(decode)


def test_a_cancelled_hand_off_leaves_nothing_at_either_end(world: ContractWorld) -> None:
    decode, prefill = world.add("d", "decode"), world.add("p", "prefill")
    ticket = reserve(decode, world, prefill).ticket
    prefill.hear(Prefill(1, request(), ticket))
    decode.hear(Cancel("r", 0))
    prefill.hear(Cancel("r", 0))
    world.run()
    assert ends(decode) == ends(prefill) == []
    check_at_rest(decode, prefill)


def test_a_lost_destination_is_a_failure_at_the_source(world: ContractWorld) -> None:
    decode, prefill = world.add("d", "decode"), world.add("p", "prefill")
    ticket = reserve(decode, world, prefill).ticket
    prefill.hear(Prefill(1, request(prompt=PROMPT), ticket))
    prefill.hear(PeerLost(decode.peer))
    world.run()
    assert prefill.num_used_pages == 0
    assert len(ends(prefill)) <= 1
    assert free(prefill) == free(prefill, at_first=True)


def begin(world: ContractWorld) -> tuple[ContractWorker, ContractWorker]:
    """A source that decodes, and a destination."""
    source, destination = world.add("s", "decode"), world.add("d", "decode")
    source.hear(Generate(1, request()))
    world.run_until(source, StepOutput)
    return source, destination


def adopt(world: ContractWorld, source: ContractWorker, destination: ContractWorker, num_room_tokens: int) -> Reserved:
    next_attempt = request(attempt=1, output=tuple(tokens(source)))
    destination.hear(Adopt(1, next_attempt, source.peer, 1, num_room_tokens))
    world.run_until(destination, Reserved)
    return heard(destination, Reserved)[-1]


@pytest.mark.parametrize("in_rounds", [True, False])
def test_a_moved_sequence_loses_no_token_and_repeats_none(world: ContractWorld, in_rounds: bool) -> None:
    source, destination = begin(world)
    num_known = len(tokens(source))
    if in_rounds:
        copy = adopt(world, source, destination, 0)
        source.hear(Migrate("r", 0, 1, copy.ticket, False))
        world.run_until(destination, Copied)
        destination.hear(Extend(2, "r", 1, tuple(tokens(source)[num_known:]), PAGE_TOKENS))
        num_known = len(tokens(source))
        destination.said.remove(copy)
        world.run_until(destination, Reserved)
        ticket = heard(destination, Reserved)[-1].ticket
    else:
        ticket = adopt(world, source, destination, PAGE_TOKENS).ticket
    source.hear(Migrate("r", 0, 1, ticket, True))
    world.run_until(source, Frozen)
    (frozen,) = heard(source, Frozen)
    assert frozen.num_output_tokens == len(tokens(source))
    destination.hear(Start("r", 1, tuple(tokens(source)[num_known:])))
    world.run_until(destination, HandedOff)
    source.hear(Cancel("r", 0))
    world.run()
    assert indices(source) + indices(destination, attempt=1) == list(range(NUM_OUTPUT))
    assert ends(source) == []
    assert len(ends(destination, attempt=1)) == 1
    check_at_rest(source, destination)


def test_a_resumed_sequence_goes_on_where_it_stood(world: ContractWorld) -> None:
    source, destination = begin(world)
    ticket = adopt(world, source, destination, PAGE_TOKENS).ticket
    source.hear(Migrate("r", 0, 1, ticket, True))
    world.run_until(source, Frozen)
    destination.hear(Cancel("r", 1))
    source.hear(Resume("r", 0))
    world.run()
    assert indices(source) == list(range(NUM_OUTPUT))
    assert len(ends(source)) == 1
    check_at_rest(source, destination)


def test_a_lost_source_ends_what_was_to_come_from_it(world: ContractWorld) -> None:
    source, destination = begin(world)
    adopt(world, source, destination, PAGE_TOKENS)
    destination.hear(PeerLost(source.peer))
    world.run()
    assert ends(destination, attempt=1) == ["failed"]
    check_at_rest(destination)


def test_what_does_not_decode_here_cannot_move_away(world: ContractWorld) -> None:
    source, destination = world.add("s", "decode"), world.add("d", "decode")
    ticket = reserve(destination, world, source).ticket
    source.hear(Migrate("unknown", 0, 1, ticket, True))
    (failed,) = heard(source, Failed)
    assert (failed.request_id, failed.attempt, failed.retryable) == ("unknown", 1, True)
    destination.hear(Cancel("r", 0))
    world.run()
    check_at_rest(source, destination)


def test_a_limit_on_pages_holds_at_once_for_what_nobody_uses(world: ContractWorld) -> None:
    worker = world.add("d", "decode")
    worker.hear(Generate(1, request("before")))
    world.run()
    assert not heard(worker, PagesHeld)
    worker.hear(PageLimit(1, 7))
    world.run()
    assert heard(worker, PagesHeld)[-1] == PagesHeld(1, 7, 0, heard(worker, PagesHeld)[-1].num_cached, 0)
    assert free(worker)[1] == 7
    worker.hear(Generate(2, request("after")))
    world.run()
    assert indices(worker, "after") == list(range(NUM_OUTPUT))
    worker.hear(PageLimit(2, NUM_PAGES))
    world.run()
    assert heard(worker, PagesHeld)[-1].num_held == NUM_PAGES
    check_at_rest(worker)


def test_a_limit_below_what_is_in_use_ends_nothing_and_holds_afterwards(world: ContractWorld) -> None:
    worker = world.add("d", "decode")
    for seq in (1, 2):
        worker.hear(Generate(seq, request(f"r{seq}", prompt=PROMPT[seq:])))
    world.run_until(worker, StepOutput)
    num_used = worker.num_used_pages
    assert num_used > 2
    worker.hear(PageLimit(1, 2))
    assert free(worker)[1] == 0
    assert heard(worker, PagesHeld)[-1].num_used == num_used
    assert heard(worker, PagesHeld)[-1].num_held >= num_used
    world.run()
    assert not heard(worker, Failed)
    if not isinstance(world, NativeWorld):  # others take what they need and never preempt
        assert heard(worker, PagesHeld)[-1].num_held == 2
    worker.hear(PageLimit(2, NUM_PAGES))
    world.run()
    for seq in (1, 2):
        assert indices(worker, f"r{seq}") == list(range(NUM_OUTPUT))
        assert len(ends(worker, f"r{seq}")) == 1
    check_at_rest(worker)


def test_a_request_above_the_limit_waits_for_a_higher_one_or_is_refused_for_now(world: ContractWorld) -> None:
    worker = world.add("d", "decode")
    worker.hear(PageLimit(1, 3))
    worker.hear(Generate(1, request()))
    world.run()
    if failures := heard(worker, Failed):
        assert failures[0].retryable
        return
    assert heard(worker, PagesHeld)[-1].num_wanted >= len(PROMPT) // PAGE_TOKENS
    worker.hear(PageLimit(2, 20))
    world.run()
    assert indices(worker) == list(range(NUM_OUTPUT))
    assert heard(worker, PagesHeld)[-1].num_wanted == 0


MOST_TOKENS = 100  # of an answer: 18 pages together with the prompt, so that there is room for two in 40


def test_where_output_is_reserved_credits_fall_by_whole_answers_and_not_while_they_grow(
    reserving_world: ContractWorld,
) -> None:
    worker = reserving_world.add("d", "decode")
    num_pages = -(-(len(PROMPT) + MOST_TOKENS) // PAGE_TOKENS)
    worker.hear(Generate(1, request("a", max_tokens=MOST_TOKENS)))
    reserving_world.run_until(worker, StepOutput)
    assert free(worker)[1] == NUM_PAGES - num_pages
    reserving_world.run()
    assert ends(worker, "a") in (["length"], ["stop"])
    check_at_rest(worker)


def test_where_output_is_reserved_a_reservation_needs_room_for_the_whole_answer(
    reserving_world: ContractWorld,
) -> None:
    source, worker = reserving_world.add("p", "prefill"), reserving_world.add("d", "decode")
    for number, name in enumerate("abc"):
        worker.hear(Reserve(number + 1, request(name, max_tokens=MOST_TOKENS), source.peer, 1))
    reserving_world.run_until(worker, Failed)
    assert [message.request_id for message in heard(worker, Reserved)] == ["a", "b"]
    assert [(message.request_id, message.retryable) for message in heard(worker, Failed)] == [("c", True)]
    wanted = [message.ticket.num_pages for message in heard(worker, Reserved)]
    assert wanted == [-(-len(PROMPT) // PAGE_TOKENS)] * 2, "only the prompt's pages are sent"
    for name in "ab":
        worker.hear(Cancel(name, 0))
    reserving_world.run()
    check_at_rest(worker)


def test_where_output_is_reserved_a_limit_withholds_nothing_that_is_promised(reserving_world: ContractWorld) -> None:
    worker = reserving_world.add("d", "decode")
    worker.hear(Generate(1, request("a", max_tokens=MOST_TOKENS)))
    reserving_world.run_until(worker, StepOutput)
    worker.hear(PageLimit(1, 2))
    reserving_world.run()
    assert ends(worker, "a") in (["length"], ["stop"])
    assert worker.num_used_pages == 0
    assert free(worker)[1] <= 2
    worker.hear(PageLimit(2, NUM_PAGES))
    reserving_world.run()
    check_at_rest(worker)


@pytest.mark.parametrize("in_rounds", [True, False])
def test_where_output_is_reserved_sequences_move_and_nothing_is_left_behind(
    reserving_world: ContractWorld, in_rounds: bool
) -> None:
    test_a_moved_sequence_loses_no_token_and_repeats_none(reserving_world, in_rounds)


def test_statistics_count_the_tokens_and_no_page_is_missing(world: ContractWorld) -> None:
    worker = world.add("d", "decode")
    if isinstance(world, SimWorld):
        pytest.skip("a simulated worker reports no statistics")
    worker.hear(Generate(1, request()))
    world.run(2.0)
    stats = heard(worker, Stats)
    sizes = {sum(dict(one.pages).values()) for one in stats}
    assert len(sizes) == 1
    counters = dict(stats[-1].counters)
    assert counters["sampled_tokens"] == NUM_OUTPUT
    assert counters["steps"] > 0
    assert (stats[-1].num_running, stats[-1].num_waiting) == (0, 0)
