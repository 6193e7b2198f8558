"""Layers with a window give pages back, and nothing else changes: the tokens are those of `transformers.generate` over
many windows, however they are computed."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from slipstream.workers.config.worker_config import EngineConfig
from slipstream.workers.engine.engine_builder import build_runner, engine_limits
from slipstream.workers.engine.execution.model_runner import ModelRunner
from slipstream.workers.engine.native_engine import NativeEngine
from tests.support.workers.engine_driver import Generated, make_request, make_ticket, owned, run, tokens_of

PAGE_TOKENS = 4  # of a window of 24 tokens
NUM_NEW_TOKENS = 60
NUM_PAGES = 1200


@pytest.fixture(scope="module", params=["mistral", "qwen2_windowed"])
def world(request: pytest.FixtureRequest, tiny_model_dir: Callable[[str], Path]) -> World:
    return World(tiny_model_dir(request.param))


class World:
    """A model with windows, and what transformers generates with it for some prompts."""

    def __init__(self, model_dir: Path) -> None:
        rng = random.Random(3)
        shared = [rng.randrange(256) for _ in range(90)]
        own = [[rng.randrange(256) for _ in range(length)] for length in (1, 23, 24, 40, 130)]
        self.prompts = [*own, *([*shared, *tail] for tail in own[1:4])]
        self.model_dir = model_dir
        self.runner = self.new_runner()
        model: Any = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32)
        self.tokens = []
        with torch.inference_mode():
            for prompt in self.prompts:
                output = model.generate(
                    torch.tensor([prompt]), max_new_tokens=NUM_NEW_TOKENS, do_sample=False, eos_token_id=None
                )
                self.tokens.append(output[0, len(prompt) :].tolist())

    def new_runner(self) -> ModelRunner:
        return build_runner(self.model_dir, EngineConfig(dtype="float32", page_tokens=PAGE_TOKENS), NUM_PAGES)

    def engine(self, runner: ModelRunner | None = None, **overrides: Any) -> NativeEngine:
        values: dict[str, Any] = {"num_pages": NUM_PAGES, "max_model_len": 256, "max_step_tokens": 32, **overrides}
        config = EngineConfig(dtype="float32", page_tokens=PAGE_TOKENS, **values)
        return NativeEngine(engine_limits(self.model_dir, config), runner or self.runner)

    def requests(self, name: str = "r") -> list[Any]:
        return [
            make_request(f"{name}{at}", prompt, max_tokens=NUM_NEW_TOKENS, ignore_eos=True)
            for at, prompt in enumerate(self.prompts)
        ]


def test_chunked_and_cached_prompts_generate_what_transformers_does(world: World) -> None:
    engine = world.engine()
    assert tokens_of(engine, *world.requests()) == world.tokens
    num_hit_tokens = engine.stats().total_prefix_hit_tokens
    assert tokens_of(engine, *world.requests("again")) == world.tokens
    assert engine.stats().total_prefix_hit_tokens > num_hit_tokens + 200
    assert owned(engine) == 0


def test_preempted_sequences_generate_what_transformers_does(world: World) -> None:
    engine = world.engine(num_pages=world.engine().limits.of_one_sequence.num_pages)
    assert tokens_of(engine, *world.requests()) == world.tokens
    assert engine.stats().total_preemptions > 0
    assert owned(engine) == 0


def test_a_sequence_never_holds_more_than_is_counted_for_it(world: World) -> None:
    engine = world.engine(prefix_caching=False)
    limits = engine.limits
    engine.add(make_request("a", world.prompts[4], max_tokens=100, ignore_eos=True))
    most = 0
    while engine.has_work:
        engine.step()
        most = max(most, owned(engine))
    num_blocks = limits.blocks_for(len(world.prompts[4]) + 99)
    assert most <= limits.pages_for(len(world.prompts[4]) + 99) < num_blocks * len(limits.windows)
    full = limits.windows.count(None)
    # What is left of a window of 24 tokens once the prompt is computed: its 6 pages and one that is begun.
    assert most >= full * num_blocks


def test_sequences_go_on_elsewhere_while_they_decode(world: World) -> None:
    """Migration in rounds: full pages while the source decodes on, the rest after it has stopped."""
    source_runner, target_runner = world.new_runner(), world.new_runner()
    source, target = world.engine(source_runner), world.engine(target_runner)
    pools = source_runner.page_bytes(), target_runner.page_bytes()
    for at, request in enumerate(world.requests()[2:], 2):
        source.add(request)
        known = Generated(0)

        def decode(num_tokens: int, known: Generated = known) -> tuple[int, ...]:
            new: list[int] = []
            while len(new) < num_tokens:
                for output in source.step():
                    known.take(output)
                    new += output.token_ids
            return tuple(new)

        def copy(reservation: Any, *, freeze: bool, key: tuple[str, int] = (request.request_id, 0)) -> None:
            ticket = make_ticket(1, reservation.first_page, len(reservation.page_ids))._replace(
                num_tokens=reservation.num_tokens
            )
            source.migrations.check_ticket(key, ticket, freeze)
            if freeze:
                source.migrations.freeze(key)
            pages = list(source.migrations.begin_send(key, ticket))
            pools[1][:, list(reservation.page_ids)] = pools[0][:, pages]
            source.migrations.end_send(key)

        tokens = decode(10)
        moved = request._replace(attempt=1, output_ids=make_request("x", tokens).prompt_ids)
        reservation = target.adopt(moved, 0)
        assert reservation is not None
        new = decode(7)
        copy(reservation, freeze=False)
        target.migrations.copied((request.request_id, 1))
        reservation = target.migrations.extend((request.request_id, 1), new, 5)
        assert reservation is not None
        late = decode(3)  # it decodes on until the request to stop arrives
        copy(reservation, freeze=True)
        target.land((request.request_id, 1))
        target.start((request.request_id, 1), late)
        source.release((request.request_id, 0))
        rest = run(target)[request.request_id, 1]
        assert [*known.token_ids, *rest.token_ids] == world.tokens[at]
    assert owned(source) == owned(target) == 0
    # What has come is found in the cache there, and only what really came.
    assert tokens_of(target, *world.requests("again")) == world.tokens


def test_a_sequence_that_moves_to_where_its_prefix_is_cached_gets_all_pages_that_it_lacks(world: World) -> None:
    """The cached blocks lie within the window, for which an adopted sequence has no pages from the cache."""
    engine = world.engine()
    prompt = world.prompts[1][:14]
    tokens_of(engine, make_request("a", prompt, max_tokens=2, ignore_eos=True))
    moved = make_request("b", prompt, max_tokens=20, ignore_eos=True)._replace(attempt=1)
    reservation = engine.adopt(moved._replace(output_ids=make_request("x", [7]).prompt_ids), 1)
    assert reservation is not None
    num_blocks, num_full = engine.limits.blocks_for(16), engine.limits.windows.count(None)
    num_cached = num_full and 3
    assert len(reservation.page_ids) == num_blocks * len(engine.limits.windows) - num_cached * num_full
    assert len(set(reservation.page_ids)) == len(reservation.page_ids)
    engine.abort(("b", 1))
    assert owned(engine) == 0
