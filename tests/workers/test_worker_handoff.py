"""Worker programs with a real engine, real UCX and real TCP: tokens computed apart are the tokens computed together."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from slipstream.router.messages import (
    Credits,
    EngineRequest,
    Failed,
    Generate,
    HandedOff,
    Reserve,
    Stats,
    StepOutput,
    TokenChunk,
)
from tests.workers.scripted_router import Connection, ScriptedRouter, is_busy, request
from tests.workers.worker_process import PAGE_TOKENS, WorkerProcess

NUM_TOKENS = 6
MODEL = "llama"  # two KV heads, so that TP=2 has one each


@dataclass
class Workers:
    router: ScriptedRouter
    decode: Connection
    prefill: Connection
    prefill_tp2: Connection


@pytest.fixture(scope="module")
def workers(
    tiny_model_dir: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Workers]:
    """A decode worker and prefill groups of one and two ranks, for all tests of this file."""
    folder = tmp_path_factory.mktemp("workers")
    model_dir = tiny_model_dir(MODEL)
    with ScriptedRouter() as router, ExitStack() as stack:
        for name, role, tp in (("d", "decode", 1), ("p", "prefill", 1), ("p2", "prefill", 2)):
            stack.enter_context(WorkerProcess(folder, name, role, model_dir, router.port, tp=tp))
        yield Workers(router, *(router.connection(name) for name in ("d", "p", "p2")))


def prompt(num_tokens: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(0, 256, num_tokens).tolist()


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
def test_pages_prefilled_elsewhere_lead_to_the_same_tokens(
    workers: Workers, source: str, num_tokens: int
) -> None:
    """Less than a page, whole pages, several slabs (64 tokens each), several steps (96 tokens each)."""
    prefill: Connection = getattr(workers, source)
    name = f"{source}-{num_tokens}"
    here = request(f"here-{name}", prompt(num_tokens), max_tokens=NUM_TOKENS, salt=f"here-{name}")
    apart = request(f"apart-{name}", prompt(num_tokens), max_tokens=NUM_TOKENS, salt=f"apart-{name}")
    tokens, handed_off = hand_off(prefill, workers.decode, apart)
    assert tokens == generate(workers.decode, here)
    page_bytes = 3 * 2 * 2 * PAGE_TOKENS * 16 * 4  # layers, heads, K and V, tokens, head_dim, float32
    assert handed_off.num_bytes >= -(-num_tokens // PAGE_TOKENS) * page_bytes
