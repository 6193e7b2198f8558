"""Worker programs with a real engine, real UCX and real TCP: tokens computed apart are the tokens computed together."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from slipstream.router.protocol.messages import (
    Credits,
    EngineRequest,
    Failed,
    HandedOff,
    Reserved,
    Role,
    StepTimes,
    TokenChunk,
)
from tests.support.workers.scripted_router import Connection, ScriptedRouter, request
from tests.support.workers.worker_process import PAGE_TOKENS, WorkerProcess

pytestmark = pytest.mark.timeout(240)  # with the start of the workers, on a busy machine

NUM_TOKENS = 6
MODEL = "llama"  # two KV heads, so that TP=2 has one each


@dataclass
class Workers:
    router: ScriptedRouter
    decode: Connection
    prefill: Connection
    prefill_tp2: Connection


@pytest.fixture(scope="module")
def workers(tiny_model_dir: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workers]:
    """A decode worker and prefill groups of one and two ranks, for all tests of this file."""
    folder = tmp_path_factory.mktemp("workers")
    model_dir = tiny_model_dir(MODEL)
    with ScriptedRouter() as router, ExitStack() as stack:
        groups: list[tuple[str, Role, int]] = [("d", "decode", 1), ("p", "prefill", 1), ("p2", "prefill", 2)]
        for name, role, tp in groups:
            stack.enter_context(WorkerProcess(folder, name, role, model_dir, router.port, tp=tp))
        yield Workers(router, *(router.connection(name) for name in ("d", "p", "p2")))


def test_workers_say_at_once_how_long_their_steps_take(workers: Workers) -> None:
    for connection in (workers.decode, workers.prefill, workers.prefill_tp2):
        first = connection.wait(StepTimes).samples
        assert all(0.0 < sample.seconds < 10.0 for sample in first)
        assert max(sample.num_prefill_tokens for sample in first) > 32
        assert max(sample.num_decoding for sample in first) > 1
        longest_context = max(sample.prefill_context_tokens for sample in first)
        assert longest_context > 0.8 * connection.hello.max_model_len


def prompt(num_tokens: int, seed: int = 0) -> list[int]:
    ids: list[int] = np.random.default_rng(seed).integers(0, 256, num_tokens).tolist()
    return ids


def tokens_of(chunks: list[TokenChunk]) -> list[int]:
    """Token ids in order of their index, which must be without gaps."""
    by_index = {chunk.index: token for chunk in chunks for token in chunk.token_ids}
    assert sorted(by_index) == list(range(min(by_index), min(by_index) + len(by_index)))
    return [by_index[index] for index in sorted(by_index)]


def generate(decode: Connection, what: EngineRequest) -> list[int]:
    decode.generate(what)
    return tokens_of(decode.wait_chunks(what.request_id, what.sampling.max_tokens, what.attempt))


def hand_off(prefill: Connection, decode: Connection, what: EngineRequest) -> tuple[list[int], HandedOff]:
    """The way a router leads a request over both workers."""
    key = what.request_id, what.attempt
    reserved = decode.reserve(what, prefill)
    prefill.prefill(what, reserved)
    (first,) = prefill.wait_chunks(what.request_id, 1, what.attempt)
    decode.start(what, first.token_ids)
    rest = decode.wait_chunks(what.request_id, what.sampling.max_tokens - 1, what.attempt)
    handed_off = decode.wait(HandedOff, lambda m: (m.request_id, m.attempt) == key)
    return tokens_of([first, *rest]), handed_off


def test_a_request_is_generated_locally(workers: Workers) -> None:
    chunks_before = workers.decode.num_messages
    tokens = generate(workers.decode, request("local", prompt(20), max_tokens=NUM_TOKENS))
    assert len(tokens) == NUM_TOKENS
    last = workers.decode.chunks("local")[-1]
    assert last.finish_reason == "length"
    workers.decode.wait_at_rest(chunks_before)


@pytest.mark.parametrize("source", ["prefill", "prefill_tp2"])
@pytest.mark.parametrize("num_tokens", [1, 5, 15, 16, 17, 48, 63, 64, 65, 200, 333])
def test_pages_prefilled_elsewhere_lead_to_the_same_tokens(workers: Workers, source: str, num_tokens: int) -> None:
    """Less than a page, whole pages, several slabs (64 tokens each), several steps (96 tokens each)."""
    prefill: Connection = getattr(workers, source)
    name = f"{source}-{num_tokens}"
    here = request(f"here-{name}", prompt(num_tokens), max_tokens=NUM_TOKENS, salt=f"here-{name}")
    apart = request(f"apart-{name}", prompt(num_tokens), max_tokens=NUM_TOKENS, salt=f"apart-{name}")
    tokens, handed_off = hand_off(prefill, workers.decode, apart)
    assert tokens == generate(workers.decode, here)
    page_bytes = 3 * 2 * 2 * PAGE_TOKENS * 16 * 4  # layers, heads, K and V, tokens, head_dim, float32
    assert handed_off.num_bytes >= -(-num_tokens // PAGE_TOKENS) * page_bytes


def test_cached_prefixes_on_either_side_are_not_sent_or_not_computed_again(workers: Workers) -> None:
    """The destination's cached pages are left out of the ticket; the source's are sent without being computed."""
    decode, prefill = workers.decode, workers.prefill
    shared, num_shared = prompt(128, seed=1), 128
    expected = generate(decode, request("fresh", [*shared, *prompt(40, 2)], max_tokens=NUM_TOKENS, salt="other"))
    # Neither side knows the prefix.
    _, all_pages = hand_off(prefill, decode, request("c0", [*shared, *prompt(40, 3)], salt="cached"))
    # Both sides do.
    tokens, few_pages = hand_off(
        prefill, decode, request("c1", [*shared, *prompt(40, 2)], max_tokens=NUM_TOKENS, salt="cached")
    )
    assert tokens == expected
    assert few_pages.num_bytes * 3 < all_pages.num_bytes
    reserved = decode.wait(Reserved, lambda m: m.request_id == "c1")
    assert (reserved.num_cached_tokens, reserved.ticket.first_page) == (num_shared, num_shared // PAGE_TOKENS)
    # Only the source does, of another salt's point of view only the destination does.
    generate(decode, request("warm-here", [*shared, *prompt(5, 4)], salt="here"))
    tokens, _ = hand_off(prefill, decode, request("c2", [*shared, *prompt(40, 2)], max_tokens=NUM_TOKENS, salt="here"))
    assert tokens == expected
    assert prefill.chunks("c2")[0].num_cached_tokens == 0
    tokens, _ = hand_off(
        workers.prefill_tp2, decode, request("c3", [*shared, *prompt(40, 2)], max_tokens=NUM_TOKENS, salt="cached")
    )
    assert tokens == expected


def test_a_request_that_moves_goes_on_from_the_tokens_it_has(workers: Workers) -> None:
    """A later attempt brings the tokens so far; both ways of placing it continue identically."""
    what = prompt(50, seed=5)
    whole = generate(workers.decode, request("whole", what, max_tokens=8, salt="w"))
    moved = request("moved", what, max_tokens=8, attempt=1, salt="m", output=whole[:4])
    tokens, _ = hand_off(workers.prefill, workers.decode, moved)
    assert tokens == whole[4:]
    again = request("again", what, max_tokens=8, attempt=2, salt="a", output=whole[:3])
    workers.decode.generate(again)
    assert tokens_of(workers.decode.wait_chunks("again", 5, 2)) == whole[3:]


def test_generate_after_reserve_computes_the_prompt_here(workers: Workers) -> None:
    what = request("changed-mind", prompt(80, 6), max_tokens=NUM_TOKENS, salt="x")
    workers.decode.reserve(what, workers.prefill)
    assert generate(workers.decode, what) == generate(
        workers.decode, request("straight", prompt(80, 6), max_tokens=NUM_TOKENS, salt="y")
    )


def test_requests_in_flight_together_do_not_disturb_each_other(workers: Workers) -> None:
    """Local and remote ones from both groups share the decode worker's batches."""
    decode = workers.decode
    names = [f"mix-{n}" for n in range(6)]
    expected = {
        n: generate(decode, request(f"alone-{n}", prompt(40 + 30 * i, 7 + i), max_tokens=24, salt="alone"))
        for i, n in enumerate(names)
    }
    sources = [workers.prefill, workers.prefill_tp2, None]
    requests = [request(n, prompt(40 + 30 * i, 7 + i), max_tokens=24, salt="mix") for i, n in enumerate(names)]
    for i, what in enumerate(requests):
        source = sources[i % 3]
        if source is None:
            decode.generate(what)
        else:
            source.prefill(what, decode.reserve(what, source))
    firsts = {}
    for i, what in enumerate(requests):
        source = sources[i % 3]
        if source is not None:
            (first,) = source.wait_chunks(what.request_id, 1)
            decode.start(what, first.token_ids)
            firsts[what.request_id] = [first]
    for what in requests:
        chunks = firsts.get(what.request_id, []) + decode.wait_chunks(what.request_id, 24)
        assert tokens_of(chunks) == expected[what.request_id]


def test_a_reservation_that_is_cancelled_before_its_prefill_gives_its_pages_back(workers: Workers) -> None:
    what = request("cancel-reserved", prompt(100), salt="cr")
    before = workers.decode.wait_all_free()
    mark = workers.decode.num_messages
    workers.decode.reserve(what, workers.prefill)
    workers.decode.cancel(what)
    workers.decode.wait_at_rest(mark)
    assert workers.decode.wait_all_free().ack_seq == before.ack_seq + 1


@pytest.mark.parametrize("phase", ["prefilling", "first_token", "landed", "decoding"])
def test_a_request_that_is_cancelled_in_any_phase_gives_all_pages_back_on_both_sides(
    workers: Workers, phase: str
) -> None:
    decode, prefill = workers.decode, workers.prefill
    what = request(f"cancel-{phase}", prompt(400), max_tokens=100, salt=phase)
    decode.wait_all_free()
    prefill.wait_all_free()
    marks = [decode.num_messages, prefill.num_messages]
    seq = prefill.prefill(what, decode.reserve(what, prefill))
    if phase == "prefilling":
        prefill.wait(Credits, lambda m: m.ack_seq == seq and m.free_pages < prefill.hello.num_pages)
    else:
        (first,) = prefill.wait_chunks(what.request_id, 1)
        if phase != "first_token":
            decode.wait(HandedOff, lambda m: m.request_id == what.request_id)
        if phase == "decoding":
            decode.start(what, first.token_ids)
            decode.wait_chunks(what.request_id, 3)
    prefill.cancel(what)
    decode.cancel(what)
    decode.wait_at_rest(marks[0])
    prefill.wait_at_rest(marks[1])
    decode.wait_all_free()
    prefill.wait_all_free()
    # Each may hear of it from the other before the router tells it; what it says of that is of no interest any more.
    failures = [m for c in (decode, prefill) for m in c.all(Failed) if m.request_id == what.request_id]
    assert all(failure.reason.endswith("gave up: cancelled") for failure in failures), failures


def test_an_unknown_request_may_be_cancelled(workers: Workers) -> None:
    workers.decode.cancel(request("unknown", [1]))
    workers.prefill.cancel(request("unknown", [1]))
    assert generate(workers.decode, request("after-unknown", prompt(5)))


def test_what_cannot_be_taken_is_refused_and_harms_nobody(workers: Workers) -> None:
    decode, prefill = workers.decode, workers.prefill
    decode.generate(request("too-long", prompt(600)))
    assert not decode.wait_failed("too-long").retryable
    decode.generate(request("no-prompt", []))
    assert not decode.wait_failed("no-prompt").retryable
    prefill.generate(request("wrong-role", prompt(5)))
    assert prefill.wait_failed("wrong-role").retryable
    reserved = decode.reserve(request("bad-ticket", prompt(40)), prefill)
    ticket = reserved.ticket._replace(num_layers=77)
    prefill.prefill(request("bad-ticket", prompt(40)), reserved._replace(ticket=ticket))
    assert "num_layers" in prefill.wait_failed("bad-ticket").reason
    decode.cancel(request("bad-ticket", prompt(40)))
    tokens, _ = hand_off(prefill, decode, request("still-fine", prompt(40), salt="fine"))
    assert len(tokens) == 8


def test_a_worker_that_may_only_use_ucx_gets_the_same_tokens_from_a_pool_of_its_own(
    tiny_model_dir: Callable[[str], Path], tmp_path: Path
) -> None:
    with ScriptedRouter() as router, ExitStack() as stack:
        opened = []
        for name, role, transport in (("d", "decode", "auto"), ("p", "prefill", "ucx")):
            transfer = {"transport": transport}
            worker = WorkerProcess(tmp_path, name, role, tiny_model_dir(MODEL), router.port, transfer=transfer)
            opened.append(stack.enter_context(worker))
        decode, prefill = router.connection("d"), router.connection("p")
        mapped = [Path(f"/proc/{worker.process.pid}/maps").read_text() for worker in opened]
        assert ["slipstream-kv-pool" in mappings for mappings in mapped] == [True, False]
        apart = request("apart", prompt(100), max_tokens=NUM_TOKENS, salt="apart")
        prefill.prefill(apart, decode.reserve(apart, prefill))
        first = prefill.wait_chunks(apart.request_id, 1)
        decode.start(apart, first[0].token_ids)
        rest = decode.wait_chunks(apart.request_id, NUM_TOKENS - 1)
        here = request("here", prompt(100), max_tokens=NUM_TOKENS, salt="here")
        decode.generate(here)
        assert tokens_of([*first, *rest]) == tokens_of(decode.wait_chunks(here.request_id, NUM_TOKENS))


def test_of_layers_with_windows_only_what_will_be_seen_is_sent(
    tiny_model_dir: Callable[[str], Path], tmp_path: Path
) -> None:
    """One layer in three sees all keys, the others 24: page groups, over two ranks and one."""
    model_dir = tiny_model_dir("qwen2_windowed")
    with ScriptedRouter() as router, ExitStack() as stack:
        stack.enter_context(WorkerProcess(tmp_path, "d", "decode", model_dir, router.port))
        stack.enter_context(WorkerProcess(tmp_path, "p2", "prefill", model_dir, router.port, tp=2))
        decode, prefill = router.connection("d"), router.connection("p2")
        assert decode.hello.group_pages == (0, 9, 9)  # a window and a step of 96 tokens, in pages of 16
        assert prefill.hello.group_pages == (0, 0, 0)
        for num_tokens in (15, 40, 333):
            apart = request(
                f"apart-{num_tokens}", prompt(num_tokens), max_tokens=NUM_TOKENS, salt=f"apart-{num_tokens}"
            )
            tokens, handed_off = hand_off(prefill, decode, apart)
            here = request(f"here-{num_tokens}", prompt(num_tokens), max_tokens=NUM_TOKENS, salt=f"here-{num_tokens}")
            assert tokens == generate(decode, here)
            num_blocks = -(-num_tokens // PAGE_TOKENS)
            first_seen = max(0, num_tokens - 23) // PAGE_TOKENS
            page_bytes = 4 * 2 * PAGE_TOKENS * 16 * 4  # KV heads, K and V, tokens, head_dim, float32; of one layer
            assert handed_off.num_bytes == (num_blocks + 2 * (num_blocks - first_seen)) * page_bytes
        decode.wait_all_free()
        prefill.wait_all_free()
