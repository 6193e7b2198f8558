"""Worker programs whose pages hold codes and scales: what is sent is what is read."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from slipstream.router.protocol.messages import HandedOff, StepTimes
from tests.support.workers.scripted_router import Connection, ScriptedRouter, request
from tests.support.workers.worker_process import PAGE_TOKENS, WorkerProcess

pytestmark = pytest.mark.timeout(240)  # with the start of the workers, on a busy machine


def prompt(num_tokens: int) -> list[int]:
    ids: list[int] = np.random.default_rng(num_tokens).integers(0, 256, num_tokens).tolist()
    return ids


def generated(decode: Connection, name: str, first: list[int], num_tokens: int) -> list[int]:
    """What the decode worker adds to `first`."""
    chunks = decode.wait_chunks(name, num_tokens - len(first))
    return [*first, *(token for chunk in chunks for token in chunk.token_ids)]


def test_pages_of_codes_lead_to_the_same_tokens_elsewhere_and_those_of_another_dtype_are_refused(
    tiny_model_dir: Callable[[str], Path], tmp_path: Path
) -> None:
    with ScriptedRouter() as router, ExitStack() as stack:
        for name, role, dtype in (("d", "decode", "fp8"), ("p", "prefill", "fp8"), ("q", "prefill", "int8")):
            engine = {"kv_cache_dtype": dtype}
            worker = WorkerProcess(tmp_path, name, role, tiny_model_dir("llama"), router.port, engine=engine)
            stack.enter_context(worker)
        decode, prefill, other = (router.connection(name) for name in ("d", "p", "q"))
        assert max(sample.num_prefill_tokens for sample in decode.wait(StepTimes).samples) > 32
        for num_tokens in (15, 64, 205):
            apart = request(f"apart-{num_tokens}", prompt(num_tokens), max_tokens=6, salt="apart")
            prefill.prefill(apart, decode.reserve(apart, prefill))
            (first,) = prefill.wait_chunks(apart.request_id, 1)
            decode.start(apart, first.token_ids)
            tokens = generated(decode, apart.request_id, list(first.token_ids), 6)
            here = request(f"here-{num_tokens}", prompt(num_tokens), max_tokens=6, salt="here")
            decode.generate(here)
            assert tokens == generated(decode, here.request_id, [], 6)
            handed_off = decode.wait(HandedOff, lambda m, name=apart.request_id: m.request_id == name)
            page_bytes = 3 * 2 * 2 * PAGE_TOKENS * (16 + 4)  # layers, heads, K and V, tokens, head_dim and a scale
            num_pages = -(-num_tokens // PAGE_TOKENS)
            assert num_pages * page_bytes <= handed_off.num_bytes < num_pages * page_bytes + 1000
        refused = request("refused", prompt(40))
        other.prefill(refused, decode.reserve(refused, other))
        reason = other.wait_failed("refused").reason
        assert "its pages are to be float8_e4m3fn, here they are int8" in reason
        decode.cancel(refused)
        decode.wait_all_free()
