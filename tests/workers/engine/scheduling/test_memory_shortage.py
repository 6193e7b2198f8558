"""Ten times more KV than there are pages: the engine preempts, refuses reservations, and gives every request the tokens
that it would have had alone."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from slipstream.router.protocol.messages import EngineRequest
from slipstream.workers.config.worker_config import EngineConfig
from slipstream.workers.engine.engine_builder import build_runner, engine_limits
from slipstream.workers.engine.native_engine import NativeEngine
from slipstream.workers.engine.scheduling.sequence import SequenceState
from tests.support.workers.engine_driver import Generated, make_request, owned, run

PAGE_TOKENS = 8
NUM_PAGES = 48
OVERCOMMITMENT = 10


def make_requests(rng: random.Random) -> list[EngineRequest]:
    """Short and long, urgent and not, greedy and drawn, some with a beginning that others share; together they need
    `OVERCOMMITMENT` times the pages that there are."""
    shared = [rng.randrange(256) for _ in range(60)]
    requests: list[EngineRequest] = []
    num_pages = 0
    while num_pages < OVERCOMMITMENT * NUM_PAGES:
        num_prompt = rng.choice([1, 7, 8, 20, rng.randint(30, 120)])
        num_output = rng.choice([1, 9, rng.randint(20, 90)])
        own = [rng.randrange(256) for _ in range(num_prompt)]
        at = len(requests)
        request = make_request(
            f"r{at}",
            [*shared[: num_prompt // 2], *own[num_prompt // 2 :]] if at % 3 == 0 else own,
            priority=rng.randint(0, 2),
            max_tokens=num_output,
            temperature=1.0 if at % 4 == 1 else 0.0,
            seed=at,
            ignore_eos=True,
        )
        requests.append(request)
        num_pages += -(-(num_prompt + num_output) // PAGE_TOKENS)
    return requests


@pytest.mark.parametrize("seed", [0, 1])
def test_ten_times_too_much_changes_no_output_and_leaves_no_page_behind(
    seed: int, tiny_model_dir: Callable[[str], Path]
) -> None:
    rng = random.Random(seed)
    model_dir = tiny_model_dir("llama")
    requests = make_requests(rng)
    config = EngineConfig(
        dtype="float32", page_tokens=PAGE_TOKENS, num_pages=OVERCOMMITMENT * NUM_PAGES * 2, max_num_seqs=len(requests)
    )
    runner = build_runner(model_dir, config, OVERCOMMITMENT * NUM_PAGES * 2)
    undisturbed = NativeEngine(engine_limits(model_dir, config), runner)
    for request in requests:
        undisturbed.add(request)
    expected = run(undisturbed, check=False)
    assert undisturbed.stats().total_preemptions == 0

    short = EngineConfig(
        dtype="float32", page_tokens=PAGE_TOKENS, num_pages=NUM_PAGES, max_num_seqs=24, max_step_tokens=96
    )
    engine = NativeEngine(engine_limits(model_dir, short), runner)
    generated: dict[tuple[str, int], Generated] = {}
    aborted: set[tuple[str, int]] = set()
    num_refused = 0
    waiting = list(requests)
    while waiting or engine.has_work:
        for _ in range(rng.randint(0, 6)):
            if waiting:
                engine.add(waiting.pop())
        if rng.random() < 0.3:
            landing = make_request(f"landing-{rng.random()}", range(rng.randint(1, 60)))
            key = (landing.request_id, 0)
            if engine.reserve(landing) is None:
                num_refused += 1
            elif rng.random() < 0.5:
                engine.release(key)
            else:
                engine.abort(key, keep_pages=True)
                engine.release(key)
        known = engine.keys()
        running = [key for key in known if engine.state(key) is SequenceState.RUNNING]
        if running and rng.random() < 0.02:
            aborted.add(key := rng.choice(running))
            engine.abort(key)
        for output in engine.step():
            key = (output.request_id, output.attempt)
            generated.setdefault(key, Generated(output.index)).take(output)
        engine.check_integrity()

    assert engine.stats().total_preemptions > 10
    assert num_refused > 0
    assert aborted
    for request in requests:
        key = (request.request_id, request.attempt)
        tokens, wanted = generated.get(key, Generated(0)).token_ids, expected[key].token_ids
        assert tokens == (wanted[: len(tokens)] if key in aborted else wanted)
        assert (key in aborted) == (generated.get(key, Generated(0)).finish_reason is None)
    assert owned(engine) == 0
    assert engine.keys() == []
