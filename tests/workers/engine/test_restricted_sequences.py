"""A real model whose requests are restricted: tokens are those of transformers with the same rules, wherever a sequence
goes on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, LogitsProcessorList, NoBadWordsLogitsProcessor

from slipstream.router.protocol.messages import ProcessorCall, pack_ids
from slipstream.workers.config.worker_config import EngineConfig
from slipstream.workers.engine.engine_builder import build_runner, engine_limits
from slipstream.workers.engine.execution.model_runner import ModelRunner
from slipstream.workers.engine.native_engine import NativeEngine
from slipstream.workers.engine.processors.registered_processors import LogitsProcessors
from slipstream.workers.interface.engine import EngineRequestError
from tests.support.workers.engine_driver import make_request, make_ticket, owned, run, tokens_of

PROMPT = list(range(40, 61))
NUM_TOKENS = 12
ALLOWED = list(range(0, 250, 3))


def no_repeats(prompt_ids: Any, output_ids: Any, logits: torch.Tensor, within: int) -> torch.Tensor:
    logits[list(output_ids[-within:])] = float("-inf")
    return logits


def fails_at_two(prompt_ids: Any, output_ids: Any, logits: torch.Tensor) -> torch.Tensor:
    if len(output_ids) == 2:
        raise RuntimeError("no third token")
    return logits


PROCESSORS = LogitsProcessors({"no_repeats": no_repeats, "fails_at_two": fails_at_two})
WITHIN_THREE = (ProcessorCall("no_repeats", '{"within": 3}'),)


class TinyEngine:
    """Engines of one tiny model, and what transformers generates with it."""

    def __init__(self, model_dir: Path) -> None:
        self._config = EngineConfig(dtype="float32", page_tokens=8, num_pages=64, max_model_len=64)
        self._runner: ModelRunner = build_runner(model_dir, self._config, 64)
        self._limits = engine_limits(model_dir, self._config)
        self._theirs: Any = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32)

    def engine(self, processors: LogitsProcessors = PROCESSORS) -> NativeEngine:
        return NativeEngine(self._limits, self._runner, processors=processors)

    def ours(self, output: list[int] | None = None, **fields: Any) -> list[int]:
        request = make_request("a", PROMPT, output or [], max_tokens=NUM_TOKENS, ignore_eos=True, **fields)
        return tokens_of(self.engine(), request)[0]

    def theirs(self, processor: Any) -> list[int]:
        out = self._theirs.generate(
            torch.tensor([PROMPT]),
            attention_mask=torch.ones(1, len(PROMPT), dtype=torch.int64),
            max_new_tokens=NUM_TOKENS,
            do_sample=False,
            eos_token_id=None,
            logits_processor=LogitsProcessorList([processor]),
        )
        tokens: list[int] = out[0, len(PROMPT) :].tolist()
        return tokens


@pytest.fixture(scope="module")
def tiny(tiny_model_dir: Callable[[str], Path]) -> TinyEngine:
    return TinyEngine(tiny_model_dir("llama"))


def test_allowed_tokens_are_those_of_transformers(tiny: TinyEngine) -> None:
    def only_allowed(ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        mask = torch.ones_like(scores, dtype=torch.bool)
        mask[:, ALLOWED] = False
        return scores.masked_fill(mask, float("-inf"))

    assert tiny.ours(allowed_token_ids=pack_ids(ALLOWED)) == tiny.theirs(only_allowed) != tiny.ours()


def test_output_without_bad_words_is_that_of_transformers(tiny: TinyEngine) -> None:
    plain = tiny.ours()
    words = [plain[:1], plain[3:5], plain[5:8]]
    without = tiny.ours(bad_words=tuple(map(tuple, words)))
    assert without == tiny.theirs(NoBadWordsLogitsProcessor(words, eos_token_id=None)) != plain


RESTRICTED: list[dict[str, Any]] = [
    {"allowed_token_ids": pack_ids(ALLOWED), "bad_words": ((30,), (60, 63))},
    {"logits_processors": WITHIN_THREE},
    {"logits_processors": WITHIN_THREE, "temperature": 1.0, "seed": 4},
]


@pytest.mark.parametrize("fields", RESTRICTED)
def test_a_sequence_that_goes_on_elsewhere_goes_on_the_same(tiny: TinyEngine, fields: dict[str, Any]) -> None:
    whole = tiny.ours(**fields)
    for num_known in (1, 5, NUM_TOKENS - 1):
        assert tiny.ours(whole[:num_known], **fields) == whole[num_known:]


@pytest.mark.parametrize("fields", RESTRICTED)
def test_the_first_token_of_a_prefill_worker_obeys_them(tiny: TinyEngine, fields: dict[str, Any]) -> None:
    engine = tiny.engine()
    request = make_request("a", PROMPT, max_tokens=NUM_TOKENS, ignore_eos=True, **fields)
    engine.add_prefill(request, make_ticket(1, 0, 3))
    assert run(engine)["a", 0].token_ids == tiny.ours(**fields)[:1]


def test_a_processor_that_fails_ends_its_sequence_alone(tiny: TinyEngine) -> None:
    engine = tiny.engine()
    plain = {"max_tokens": NUM_TOKENS, "ignore_eos": True}
    engine.add(make_request("good", PROMPT, **plain))
    engine.add(make_request("bad", PROMPT, logits_processors=(ProcessorCall("fails_at_two"),), **plain))
    ended = run(engine)
    assert ended["good", 0].token_ids == tiny.ours()
    assert (len(ended["bad", 0].token_ids), ended["bad", 0].finish_reason) == (2, "error")
    [failed] = engine.take_failures()
    assert (failed.request_id, failed.retryable, failed.kind) == ("bad", False, "logits_processor_failed")
    assert "'fails_at_two' raised RuntimeError: no third token" in failed.reason
    assert not engine.take_failures()
    assert owned(engine) == 0


@pytest.mark.parametrize(
    ("fields", "field", "reason"),
    [
        ({"logits_processors": (ProcessorCall("other"),)}, "logits_processors", "'other' is not registered"),
        ({"logits_processors": (ProcessorCall("no_repeats", "[1]"),)}, "logits_processors", "are no object"),
        ({"allowed_token_ids": pack_ids([5, 999])}, "allowed_token_ids", "999"),
        ({"bad_words": ((5, 999),)}, "bad_words", "999"),
        ({"bad_words": ((),)}, "bad_words", "not in the vocabulary"),
    ],
)
def test_what_this_engine_cannot_do_is_refused(
    tiny: TinyEngine, fields: dict[str, Any], field: str, reason: str
) -> None:
    with pytest.raises(EngineRequestError, match=reason) as refused:
        tiny.engine().add(make_request("a", PROMPT, **fields))
    assert refused.value.field == field
