"""Structured sequences: the masks are right, every output fits its grammar, and a sequence that moves goes on
identically."""

from __future__ import annotations

import json
import math
import re
import threading
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
import tokenizers

from slipstream.router.protocol.messages import EngineRequest, GrammarSpec
from slipstream.workers.config.worker_config import EngineConfig
from slipstream.workers.engine.engine_builder import build_runner, engine_limits
from slipstream.workers.engine.execution.gpu.gpu_sampler import GpuSampler
from slipstream.workers.engine.execution.model_runner import ModelRunner
from slipstream.workers.engine.native_engine import NativeEngine
from slipstream.workers.engine.structured_output.grammars import GrammarCompiler
from slipstream.workers.interface.engine import EngineRequestError
from tests.support.workers.engine_driver import Generated, make_request, make_ticket, run

DEMO = Path(__file__).parents[4] / "models" / "slipstream-demo"
TOKENIZER = tokenizers.Tokenizer.from_file(str(DEMO / "tokenizer.json"))
PROMPT: list[int] = TOKENIZER.encode("Tell me about the harbour, and the names of its ships.").ids
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 30},
        "size": {"type": "integer", "minimum": 0, "maximum": 999},
        "tags": {"type": "array", "items": {"enum": ["red", "green", "blue"]}, "maxItems": 4},
    },
    "required": ["name", "size", "tags"],
    "additionalProperties": False,
}
JSON = GrammarSpec("json", json.dumps(SCHEMA))
DATE = r"[12][0-9]{3}-(0[1-9]|1[0-2])-[0-3][0-9]"
REGEX = GrammarSpec("regex", DATE)
CHOICES = ["yes", "yesterday", 'a "quoted" one\n']
CHOICE = GrammarSpec("choice", json.dumps(CHOICES))
LARK = GrammarSpec("grammar", 'start: "(" start ")" | "x"')
GBNF = GrammarSpec("grammar", 'root ::= ("ab" | "ba") root | "."')
GUIDES = (JSON, REGEX, CHOICE, LARK, GBNF)


@pytest.fixture(scope="module")
def runner() -> ModelRunner:
    return build_runner(DEMO, EngineConfig(dtype="float32", page_tokens=8), 256)


def make_book() -> GrammarCompiler:
    limits = engine_limits(DEMO, EngineConfig(num_pages=64))
    return GrammarCompiler(DEMO, limits.vocab_size, limits.eos_token_ids)


BOOK = make_book()


def make_engine(runner: ModelRunner, **overrides: Any) -> NativeEngine:
    values: dict[str, Any] = {"num_pages": 256, "max_num_seqs": 16, "max_step_tokens": 128, **overrides}
    config = EngineConfig(dtype="float32", page_tokens=8, **values)
    return NativeEngine(engine_limits(DEMO, config), runner, BOOK)


def constrained(name: str, grammar: GrammarSpec | None, seed: int = 0, **params: Any) -> EngineRequest:
    return make_request(
        name, PROMPT, **{"max_tokens": 160, "grammar": grammar, "seed": seed, "temperature": 1.0, **params}
    )


def outcome(engine: NativeEngine, *requests: EngineRequest) -> dict[str, Generated]:
    for request in requests:
        engine.add(request)
    results = {key[0]: result for key, result in run(engine).items()}
    assert all(result.finish_reason is not None for result in results.values())
    return results


def text_of(result: Generated) -> str:
    shown = result.token_ids[:-1] if result.stop_token_id is not None else result.token_ids
    text: str = TOKENIZER.decode(shown, skip_special_tokens=False)
    return text


def check(grammar: GrammarSpec, text: str) -> None:
    if grammar is JSON:
        jsonschema.validate(json.loads(text), SCHEMA)
    elif grammar is REGEX:
        assert re.fullmatch(DATE, text), text
    elif grammar is CHOICE:
        assert text in CHOICES
    elif grammar is LARK:
        assert text == "(" * (len(text) // 2) + "x" + ")" * (len(text) // 2)
    else:
        assert re.fullmatch(r"(ab|ba)*\.", text), text


def bits_of(grammar: GrammarSpec, output: list[int], held_back: tuple[int, ...] = ()) -> set[int]:
    vocab_size = TOKENIZER.get_vocab_size()
    mask = np.empty(-(-vocab_size // 8), np.uint8)
    BOOK.follow(grammar, array("i", [1, 2, *output]), 2).write_allowed(mask, held_back)
    return set(np.flatnonzero(np.unpackbits(mask, bitorder="little")).tolist())


def test_tokens_that_the_model_does_not_have_are_no_reason_to_refuse_a_grammar(tmp_path: Path) -> None:
    spec = json.loads((DEMO / "tokenizer.json").read_text())
    vocab_size = TOKENIZER.get_vocab_size()
    spec["added_tokens"].append(spec["added_tokens"][-1] | {"id": vocab_size, "content": "<|new|>"})
    (tmp_path / "tokenizer.json").write_text(json.dumps(spec))
    masks = [np.empty(-(-vocab_size // 8), np.uint8) for _ in range(2)]
    for folder, mask in zip((DEMO, tmp_path), masks, strict=True):
        book = GrammarCompiler(folder, vocab_size, [2])
        book.follow(CHOICE, array("i", [1, 2]), 2).write_allowed(mask, ())
    assert np.array_equal(*masks)


@pytest.mark.parametrize("written", ["", "y", "yes", "yest", 'a "'])
def test_the_mask_is_what_going_through_the_vocabulary_finds(written: str) -> None:
    """Where the text is forced, one way to spell it remains: that of the tokenizer."""
    eos = set(engine_limits(DEMO, EngineConfig(num_pages=64)).eos_token_ids)
    expected = set(eos) if written in CHOICES else set()
    for token_id in set(range(TOKENIZER.get_vocab_size())) - eos:
        text = TOKENIZER.decode([token_id], skip_special_tokens=True)
        if text and any(choice.startswith(written + text) for choice in CHOICES):
            expected.add(token_id)
    allowed = bits_of(CHOICE, TOKENIZER.encode(written, add_special_tokens=False).ids)
    if sum(choice.startswith(written) for choice in CHOICES) == 1:
        assert len(allowed) == 1
        assert allowed <= expected
    else:
        assert allowed == expected


def test_tokens_are_held_back_only_where_there_are_others() -> None:
    written = TOKENIZER.encode("yes", add_special_tokens=False).ids
    eos = set(engine_limits(DEMO, EngineConfig(num_pages=64)).eos_token_ids)
    assert bits_of(CHOICE, written) >= eos
    assert bits_of(CHOICE, written, tuple(eos)) == bits_of(CHOICE, written) - eos
    complete = TOKENIZER.encode("x", add_special_tokens=False).ids
    assert bits_of(LARK, complete, tuple(eos)) == bits_of(LARK, complete) == eos


def test_an_output_that_has_left_its_grammar_may_go_on_with_nothing() -> None:
    assert bits_of(REGEX, PROMPT) == set()


@pytest.mark.parametrize("grammar", GUIDES, ids=lambda grammar: f"{grammar.kind}-{grammar.spec[:6]}")
def test_every_output_that_ends_fits_its_grammar(runner: ModelRunner, grammar: GrammarSpec) -> None:
    drawn = [constrained(f"drawn-{seed}", grammar, seed, temperature=1.5 * (seed % 2) + 0.5) for seed in range(12)]
    results = outcome(make_engine(runner), *drawn, constrained("greedy", grammar, temperature=0.0))
    ended = [result for result in results.values() if result.finish_reason == "stop"]
    assert len(ended) >= 6
    assert {result.finish_reason for result in results.values()} <= {"stop", "length"}
    for result in ended:
        check(grammar, text_of(result))


def test_others_in_the_batch_get_the_tokens_that_they_get_alone(runner: ModelRunner) -> None:
    plain = [
        constrained("greedy", None, temperature=0.0),
        constrained("drawn", None, 5),
        constrained("cut", None, 6, top_p=0.8),
    ]
    alone = outcome(make_engine(runner), *plain)
    mixed = outcome(
        make_engine(runner), *plain, *(constrained(f"g{i}", grammar, i) for i, grammar in enumerate(GUIDES))
    )
    assert all(mixed[name].token_ids == result.token_ids for name, result in alone.items())


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_whoever_goes_on_elsewhere_or_after_a_prefill_goes_on_identically(
    runner: ModelRunner, temperature: float
) -> None:
    request = constrained("r", JSON, 3, temperature=temperature)
    whole = outcome(make_engine(runner), request)["r"]
    assert len(whole.token_ids) > 10
    for num_known in range(1, len(whole.token_ids) - 1, 9):
        known = whole.token_ids[:num_known]
        resumed = make_request("r", PROMPT, known, max_tokens=160, grammar=JSON, seed=3, temperature=temperature)
        rest = outcome(make_engine(runner), resumed)["r"]
        assert (known + rest.token_ids, rest.finish_reason) == (whole.token_ids, whole.finish_reason)
    prefill = make_engine(runner)
    prefill.add_prefill(request, make_ticket(1, 0, prefill.limits.pages_for(len(PROMPT))))
    assert run(prefill)["r", 0].token_ids == whole.token_ids[:1]


def test_a_lack_of_pages_changes_no_output(runner: ModelRunner) -> None:
    requests = [
        constrained(f"r{i}", grammar, i, max_tokens=60) for i, grammar in enumerate((JSON, None, JSON, JSON, None))
    ]
    wide = outcome(make_engine(runner), *requests)
    narrow = make_engine(runner, num_pages=18)
    tight = outcome(narrow, *requests)
    assert narrow.stats().total_preemptions > 0
    assert {name: r.token_ids for name, r in tight.items()} == {name: r.token_ids for name, r in wide.items()}


def test_logprobs_are_of_the_tokens_that_are_allowed(runner: ModelRunner) -> None:
    result = outcome(make_engine(runner), constrained("r", CHOICE, logprobs=5))["r"]
    check(CHOICE, text_of(result))
    for logprob in result.logprobs:
        assert logprob is not None
        assert logprob.top
        assert all(math.isfinite(value) for _, value in logprob.top)
        assert logprob.logprob <= 1e-6
    first = result.logprobs[0]
    assert first is not None
    assert math.fsum(math.exp(value) for _, value in first.top) == pytest.approx(1, abs=1e-3)


def test_penalties_biases_and_least_lengths_leave_the_grammar_in_force(runner: ModelRunner) -> None:
    eos = engine_limits(DEMO, EngineConfig(num_pages=64)).eos_token_ids
    fields: list[dict[str, Any]] = [
        {"presence_penalty": 2.0, "frequency_penalty": 2.0},
        {"repetition_penalty": 3.0, "temperature": 0.0},
        {"logit_bias": tuple((token_id, 100.0) for token_id in (*eos, *PROMPT[:3]))},
        {"min_tokens": 100},
        {"ignore_eos": True},
        {"top_k": 2, "min_p": 0.1, "stop_token_ids": (PROMPT[0],)},
    ]
    results = outcome(make_engine(runner), *(constrained(f"r{i}", REGEX, i, **extra) for i, extra in enumerate(fields)))
    for result in results.values():
        assert result.finish_reason == "stop"
        check(REGEX, text_of(result))


def test_a_least_length_keeps_a_grammar_that_can_go_on_from_ending(runner: ModelRunner) -> None:
    words = GrammarSpec("regex", "[a-z ]*")
    result = outcome(make_engine(runner), constrained("r", words, 1, min_tokens=40, max_tokens=60))["r"]
    assert len(result.token_ids) >= 40
    assert re.fullmatch("[a-z ]*", text_of(result))


def test_what_cannot_be_compiled_ends_in_an_error_and_others_go_on(runner: ModelRunner) -> None:
    results = outcome(
        make_engine(runner),
        constrained("bad", GrammarSpec("regex", "(((")),
        constrained("plain", None, max_tokens=5, ignore_eos=True),
        constrained("good", REGEX),
    )
    assert [results[name].finish_reason for name in ("bad", "plain", "good")] == ["error", "length", "stop"]


def test_a_tokenizer_that_is_missing_ends_structured_sequences_alone(runner: ModelRunner, tmp_path: Path) -> None:
    engine = NativeEngine(make_engine(runner).limits, runner, GrammarCompiler(tmp_path, 4096, ()))
    results = outcome(engine, constrained("r", REGEX), constrained("plain", None, max_tokens=5, ignore_eos=True))
    assert [results[name].finish_reason for name in ("r", "plain")] == ["error", "length"]


def test_a_grammar_is_compiled_once_the_tokenizer_is_there_again(tmp_path: Path) -> None:
    book = GrammarCompiler(tmp_path, TOKENIZER.get_vocab_size(), [2])
    mask = np.empty(-(-TOKENIZER.get_vocab_size() // 8), np.uint8)
    book.follow(CHOICE, array("i", [1, 2]), 2).write_allowed(mask)
    assert not mask.any()
    (tmp_path / "tokenizer.json").write_bytes((DEMO / "tokenizer.json").read_bytes())
    book.follow(CHOICE, array("i", [1, 2]), 2).write_allowed(mask)
    assert mask.any()


def test_an_engine_without_grammars_refuses_them(runner: ModelRunner) -> None:
    engine = NativeEngine(make_engine(runner).limits, runner)
    with pytest.raises(EngineRequestError, match="grammar"):
        engine.add(constrained("r", REGEX))


def test_the_sampler_of_a_gpu_masks_alike(runner: ModelRunner) -> None:
    torch = pytest.importorskip("torch")
    from slipstream.workers.engine.plan.step_plan import SamplingRow
    from slipstream.workers.engine.sampling.sampler import Sampler

    vocab_size = make_engine(runner).limits.vocab_size
    logits = torch.randn(4, vocab_size, generator=torch.Generator().manual_seed(1))
    params = [
        constrained("r", grammar, 1, temperature=t).sampling for grammar, t in ((JSON, 0.0), (None, 0.0), (REGEX, 1.0))
    ]
    params.append(constrained("r", None, 1).sampling)
    rows = [
        SamplingRow(p, 0, grammar=BOOK.follow(p.grammar, array("i", PROMPT), len(PROMPT)) if p.grammar else None)
        for p in params
    ]
    device = torch.device("cpu")
    expected = Sampler(vocab_size, device).sample(logits.clone(), rows)
    assert GpuSampler(vocab_size, device).sample(logits.clone(), rows).token_ids == expected.token_ids
    greedy = rows[:2]
    assert GpuSampler(vocab_size, device).sample(logits[:2].clone(), greedy).token_ids == expected.token_ids[:2]


class SlowBook(GrammarCompiler):
    """Compiles when the test lets it."""

    def __init__(self, on_ready: Callable[[], None]) -> None:
        limits = engine_limits(DEMO, EngineConfig(num_pages=64))
        super().__init__(DEMO, limits.vocab_size, limits.eos_token_ids, on_ready)
        self.may_compile = threading.Event()

    def _compile(self, grammar: GrammarSpec) -> Any:
        assert self.may_compile.wait(60)
        return super()._compile(grammar)


def test_who_waits_for_a_grammar_holds_up_nobody_and_goes_on_when_it_is_ready(runner: ModelRunner) -> None:
    ready = threading.Event()
    book = SlowBook(ready.set)
    engine = NativeEngine(make_engine(runner).limits, runner, book)
    engine.add(constrained("waits", REGEX))
    engine.add(make_request("goes on", PROMPT[:5], max_tokens=20, priority=7, ignore_eos=True))
    reserved = constrained("comes", REGEX)
    assert engine.reserve(reserved) is not None
    engine.land(("comes", 0))
    engine.start(("comes", 0), (TOKENIZER.token_to_id("1"),))
    before = run(engine)
    assert {key[0]: len(result.token_ids) for key, result in before.items()} == {"goes on": 20}
    assert not engine.has_work  # it does not look again and again
    engine.check_integrity()
    engine.abort(("waits", 0))
    engine.add(constrained("waits too", REGEX))
    assert run(engine) == {}
    book.may_compile.set()
    assert ready.wait(60)
    engine.grammar_ready()
    after = {key[0]: text_of(result) for key, result in run(engine).items()}
    assert re.fullmatch(DATE, after["waits too"])
    assert re.fullmatch(DATE, "1" + after["comes"])
    engine.check_integrity()
    assert engine.page_counts()["active"] == engine.page_counts()["reserved"] == 0
