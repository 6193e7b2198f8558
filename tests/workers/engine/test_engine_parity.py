"""Real models: the engine's greedy tokens are those of `transformers.generate`, however the batch is put together."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from slipstream.router.protocol.messages import EngineRequest
from slipstream.workers.config.worker_config import EngineConfig
from slipstream.workers.engine.engine_builder import build_runner, engine_limits
from slipstream.workers.engine.execution.model_runner import ModelRunner
from slipstream.workers.engine.native_engine import NativeEngine
from slipstream.workers.engine.plan.step_plan import PageSend, SendProgress
from slipstream.workers.interface.engine import AttemptKey
from tests.support.workers.engine_driver import Generated, make_request, make_ticket, owned, run, tokens_of
from tests.support.workers.tiny_models import EOS_ID, FAMILIES, PAD_ID

NUM_PROMPTS = 52
NUM_PAGES = 1024  # of the pools
NUM_NEW_TOKENS = 10
PAGE_TOKENS = 8
MAX_PROMPT = 90


def make_prompts() -> list[list[int]]:
    """Lengths from 1 to 90, every third with a beginning that others share, some ending with a page."""
    rng = random.Random(1)
    shared = [rng.randrange(256) for _ in range(40)]
    prompts = []
    for i in range(NUM_PROMPTS):
        length = [1, PAGE_TOKENS, 2 * PAGE_TOKENS, MAX_PROMPT][i] if i < 4 else rng.randint(2, MAX_PROMPT)
        own = [rng.randrange(256) for _ in range(length)]
        prompts.append([*shared[: length // 2], *own[length // 2 :]] if i % 3 == 0 else own)
    return prompts


PROMPTS = make_prompts()


class Reference:
    """A family's model, loaded once, and what transformers generates with it, in one padded batch."""

    def __init__(self, model_dir: Path) -> None:
        self.model_dir = model_dir
        self.runner = self.new_runner()
        model: Any = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32)
        width = max(map(len, PROMPTS))
        ids = torch.tensor([[PAD_ID] * (width - len(p)) + p for p in PROMPTS])
        mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in PROMPTS])
        with torch.inference_mode():
            output = model.generate(ids, attention_mask=mask, max_new_tokens=NUM_NEW_TOKENS, do_sample=False)
        self.tokens = [self._up_to_eos(row) for row in output[:, width:].tolist()]

    @staticmethod
    def _up_to_eos(row: list[int]) -> list[int]:
        return row[: row.index(EOS_ID) + 1] if EOS_ID in row else row

    def new_runner(self) -> ModelRunner:
        """With a pool of its own."""
        return build_runner(self.model_dir, EngineConfig(dtype="float32", page_tokens=PAGE_TOKENS), NUM_PAGES)

    def engine(self, **overrides: Any) -> NativeEngine:
        """A fresh engine on the family's own runner; all engines of a family share model and memory."""
        values: dict[str, Any] = {
            "num_pages": NUM_PAGES,
            "max_model_len": 128,
            "max_num_seqs": 16,
            "max_step_tokens": 256,
        }
        config = EngineConfig(dtype="float32", page_tokens=PAGE_TOKENS, **{**values, **overrides})
        return NativeEngine(engine_limits(self.model_dir, config), self.runner)


@pytest.fixture(scope="module")
def reference(tiny_model_dir: Callable[[str], Path]) -> Callable[[str], Reference]:
    known: dict[str, Reference] = {}

    def of(family: str) -> Reference:
        if family not in known:
            known[family] = Reference(tiny_model_dir(family))
        return known[family]

    return of


def requests() -> list[EngineRequest]:
    return [make_request(f"r{i}", prompt, max_tokens=NUM_NEW_TOKENS) for i, prompt in enumerate(PROMPTS)]


@pytest.mark.parametrize("family", FAMILIES)
def test_mixed_batches_generate_what_transformers_does(family: str, reference: Callable[[str], Reference]) -> None:
    known = reference(family)
    engine = known.engine()
    assert tokens_of(engine, *requests()) == known.tokens
    assert engine.stats().total_prefix_hit_tokens > 0
    assert engine.stats().total_preemptions == 0


@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_each_alone_generates_what_transformers_does(family: str, reference: Callable[[str], Reference]) -> None:
    engine = reference(family).engine(max_num_seqs=1)
    assert tokens_of(engine, *requests()) == reference(family).tokens


@pytest.mark.parametrize("family", ["llama", "mistral"])
def test_prefix_cache_changes_nothing(family: str, reference: Callable[[str], Reference]) -> None:
    known = reference(family)
    engine = known.engine(prefix_caching=False)
    assert tokens_of(engine, *requests()) == known.tokens
    assert engine.stats().total_prefix_hit_tokens == 0
    warm = known.engine()
    tokens_of(warm, *requests())
    again = [make_request(f"again{i}", prompt, max_tokens=NUM_NEW_TOKENS) for i, prompt in enumerate(PROMPTS)]
    assert tokens_of(warm, *again) == known.tokens


@pytest.mark.parametrize(
    ("family", "max_step_tokens"), [("mistral", 5), ("llama_tied", 24), ("qwen2_windowed", 17), ("mistral", 30)]
)
def test_small_chunks_change_nothing(family: str, max_step_tokens: int, reference: Callable[[str], Reference]) -> None:
    known = reference(family)
    engine = known.engine(max_step_tokens=max_step_tokens, max_num_seqs=8)
    assert tokens_of(engine, *requests()) == known.tokens


@pytest.mark.parametrize(
    ("family", "prefix_caching", "num_pages"), [("llama_biased", False, 24), ("qwen2", True, 24), ("mistral", True, 17)]
)
def test_preemption_changes_nothing(
    family: str, prefix_caching: bool, num_pages: int, reference: Callable[[str], Reference]
) -> None:
    known = reference(family)
    engine = known.engine(num_pages=num_pages, prefix_caching=prefix_caching)
    assert tokens_of(engine, *requests()) == known.tokens
    assert engine.stats().total_preemptions > 0


class CopyingSink:
    """Copies pages as bytes into another pool the moment the runner says that a layer of them is complete."""

    def __init__(self, source: ModelRunner, target: ModelRunner) -> None:
        self._source, self._target = source.page_bytes(), target.page_bytes()
        self.target_pages: dict[int, tuple[int, ...]] = {}  # by transfer
        self._sends: dict[int, PageSend] = {}
        self._num_copied: dict[tuple[int, int], int] = {}  # by transfer and layer
        self.max_incomplete = 0  # sends of which some pages had left before the last was computed

    def begin_sends(self, sends: tuple[PageSend, ...]) -> None:
        self._sends |= {send.ticket.transfer_id: send for send in sends}

    def layer_done(self, layer: int, progress: tuple[SendProgress, ...]) -> None:
        for p in progress:
            send = self._sends[p.transfer_id]
            source_pages = np.frombuffer(send.page_ids, np.int32)
            done = self._num_copied.get((p.transfer_id, layer), 0)
            ready = max(done, p.num_pages - send.ticket.first_page)
            target_pages = list(self.target_pages[p.transfer_id][done:ready])
            self._target[layer, target_pages] = self._source[layer, source_pages[done:ready]]
            self._num_copied[p.transfer_id, layer] = ready
            self.max_incomplete += 0 < ready < send.ticket.num_pages


@pytest.mark.parametrize("family", ["llama", "qwen3", "mistral", "qwen2_windowed"])
def test_prompt_computed_elsewhere_goes_on_identically(family: str, reference: Callable[[str], Reference]) -> None:
    """Prefill in one engine, pages copied layer by layer into the pool of another while it computes, decoding there."""
    known = reference(family)
    source, target = known.new_runner(), known.new_runner()
    prefill = NativeEngine(known.engine(max_step_tokens=40, max_num_seqs=8).limits, source)
    decode = NativeEngine(known.engine(max_num_seqs=64).limits, target)
    source.sink = sink = CopyingSink(source, target)
    for number, request in enumerate(requests()):
        reservation = decode.reserve(request)
        assert reservation is not None
        sink.target_pages[number] = reservation.page_ids
        prefill.add_prefill(request, make_ticket(number, reservation.first_page, len(reservation.page_ids)))
    results: dict[AttemptKey, Generated] = {}
    while prefill.has_work:
        for output in prefill.step():
            key = (output.request_id, output.attempt)
            results[key] = Generated(0)
            results[key].take(output)
            prefill.release(key)  # all its pages have been copied
            if output.finish_reason is None:
                decode.land(key)
                decode.start(key, output.token_ids)
            else:
                decode.abort(key)
    assert sink.max_incomplete > 0
    while decode.has_work:
        for output in decode.step():
            results[output.request_id, output.attempt].take(output)
    assert [results[f"r{i}", 0].token_ids for i in range(NUM_PROMPTS)] == known.tokens
    assert owned(prefill) == owned(decode) == 0
    assert decode.stats().total_computed_tokens < NUM_PROMPTS * NUM_NEW_TOKENS  # no prompt was computed there


def test_reported_logprobs_are_those_of_the_model(reference: Callable[[str], Reference]) -> None:
    """Whatever penalties, temperature and filters do to the choice."""
    known = reference("llama")
    prompt = PROMPTS[5]
    engine = known.engine()
    sampling: dict[str, Any] = {
        "temperature": 0.7,
        "top_k": 20,
        "presence_penalty": 1.5,
        "repetition_penalty": 1.3,
        "seed": 3,
    }
    engine.add(make_request("a", prompt, max_tokens=6, ignore_eos=True, logprobs=4, **sampling))
    result = run(engine)["a", 0]
    model = AutoModelForCausalLM.from_pretrained(known.model_dir, dtype=torch.float32)
    with torch.inference_mode():
        logits = model(torch.tensor([prompt + result.token_ids])).logits[0, len(prompt) - 1 : -1]
    expected = torch.log_softmax(logits, dim=-1)
    for i, logprob in enumerate(result.logprobs):
        assert logprob is not None
        assert logprob.logprob == pytest.approx(float(expected[i, result.token_ids[i]]), abs=1e-3)
        values, ids = expected[i].topk(4)
        assert [token_id for token_id, _ in logprob.top] == ids.tolist()
        assert [value for _, value in logprob.top] == pytest.approx(values.tolist(), abs=1e-3)


DRAWN: dict[str, Any] = {"temperature": 0.9, "top_p": 0.95, "max_tokens": 16, "ignore_eos": True}
MORE_DRAWN: list[dict[str, Any]] = [
    {},
    {"top_p": 1.0},
    {"top_k": 10, "min_p": 0.02},
    {"repetition_penalty": 1.2, "frequency_penalty": 0.5, "logit_bias": ((5, 2.0), (6, -100.0))},
]


def drawn_requests() -> list[EngineRequest]:
    return [make_request(f"d{i}", PROMPTS[i], **{**DRAWN, **MORE_DRAWN[i % 4], "seed": 1000 + i}) for i in range(12)]


def test_seeded_draws_do_not_depend_on_the_batch(reference: Callable[[str], Reference]) -> None:
    """Alone, together, in small chunks, preempted, and beside greedy sequences: the same tokens."""
    known = reference("llama")
    alone = [tokens_of(known.engine(), request)[0] for request in drawn_requests()]
    assert len({tuple(tokens) for tokens in alone}) == 12
    assert tokens_of(known.engine(), *drawn_requests()) == alone
    assert tokens_of(known.engine(max_step_tokens=16), *requests()[:4], *drawn_requests())[4:] == alone
    crowded = known.engine(num_pages=24, max_num_seqs=12)
    assert tokens_of(crowded, *drawn_requests()) == alone
    assert crowded.stats().total_preemptions > 0


@pytest.mark.parametrize("num_known", [1, 7, 15])
def test_seeded_draws_go_on_identically_in_another_attempt(
    num_known: int, reference: Callable[[str], Reference]
) -> None:
    known = reference("llama")
    whole = tokens_of(known.engine(), *drawn_requests())
    resumed = [
        make_request(
            f"d{i}", PROMPTS[i], whole[i][:num_known], attempt=1, **{**DRAWN, **MORE_DRAWN[i % 4], "seed": 1000 + i}
        )
        for i in range(12)
    ]
    assert tokens_of(known.engine(), *resumed) == [tokens[num_known:] for tokens in whole]


def test_other_seed_draws_otherwise(reference: Callable[[str], Reference]) -> None:
    known = reference("llama")
    pair = [make_request(f"s{seed}", PROMPTS[0], **DRAWN, seed=seed) for seed in (1, 2)]
    first, second = tokens_of(known.engine(), *pair)
    assert first != second
