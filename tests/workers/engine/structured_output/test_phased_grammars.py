"""Outputs whose grammar begins at a trigger: until then nothing is computed for them, and none of them leaves it."""

from __future__ import annotations

import json
import random
import re
import threading
from array import array
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
from llguidance import LLMatcher, LLTokenizer

from slipstream.router.protocol.grammar import grammar_of_phase
from slipstream.router.protocol.messages import GrammarSpec
from slipstream.router.protocol.phased_grammar import Phase, PhasedGrammar, Trigger
from slipstream.router.structured_output.byte_tokenizer import NUM_BYTES, byte_tokenizer_json
from slipstream.workers.config.worker_config import EngineConfig
from slipstream.workers.engine.engine_builder import build_runner, engine_limits
from slipstream.workers.engine.execution.model_runner import ModelRunner
from slipstream.workers.engine.limits.engine_limits import EngineLimits
from slipstream.workers.engine.native_engine import NativeEngine
from slipstream.workers.engine.structured_output.grammars import GrammarCompiler
from tests.support.workers.engine_driver import Generated, make_request, make_ticket, run

DEMO = Path(__file__).parents[4] / "models" / "slipstream-demo"
SPEC = json.loads((DEMO / "tokenizer.json").read_text())
NUM_DEMO_TOKENS = 4096
TOOL_CALL, EOS = 8, 2
JSON = '%json {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}'
CALLS = f'start: call+\ncall: MARKER "\\n"? json "</call>"\njson: {JSON}\n'
OBJECT = 'start: "{" W? "\\"name\\"" W? ":" W? "\\"f\\"" W? "}"\nW: /[ \\n]+/'
SHAPES = {
    "texts": PhasedGrammar(
        (
            Phase((Trigger(("<think>",), 1, at_start=True), Trigger(("<call>",), 2), Trigger(("[F(",), 3))),
            Phase((Trigger(("</think>",), 0),)),
            Phase(grammar=CALLS.replace("MARKER", '"<call>"')),
            Phase(grammar='start: "[F(" /[0-9]+/ ")]"'),
        )
    ),
    "a special token": PhasedGrammar(
        (
            Phase((Trigger(("</think>",), 1), Trigger((TOOL_CALL,), 2)), may_end=False),
            Phase((Trigger((TOOL_CALL,), 2),)),
            Phase(grammar=CALLS.replace("MARKER", f"<[{TOOL_CALL}]>")),
        ),
        shown_ids=(TOOL_CALL,),
    ),
    "a start": PhasedGrammar((Phase((Trigger(('{"name":"f"',), 1, at_start=True),)), Phase(grammar=OBJECT))),
    "a grammar first": PhasedGrammar(
        (
            Phase((Trigger(("<think>",), 1),), 'start: "<think>" | "{" /[0-9]*/ "}"'),
            Phase((Trigger(("</think>",), 2),), may_end=False),
            Phase(grammar='start: "</think>" "{" /[0-9]*/ "}"'),
        )
    ),
}
# Tokens that cross the ends of triggers, be it that they begin in them or before them.
CROSSING = (
    ">\n",
    "l>\n{",
    "<call>\n",
    " <call>",
    "a<call>x",
    "F(1",
    "[F(7",
    "</think><call>\n",
    '"f"}',
    "k>{",
    "<call>",
)
# What leads into the triggers, to their ends and beyond them.
PIECES = ("<call>", "<ca", "ll", ">\n", "<think>", "</think>", "[F(", "[", '{"name', '": "f"', "\n", "the ", "<", "{1}")
BEGINNINGS = ('{"name', ' {\n"name": "f', "<think>a</think>{", "a <call", "[F", "<think></think>b<call>{")
Reference = Callable[[str], bool]


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    spec = json.loads(json.dumps(SPEC))
    for number, text in enumerate(CROSSING):
        spec["model"]["vocab"][text.replace(" ", "Ġ").replace("\n", "Ċ")] = NUM_DEMO_TOKENS + number
    folder = tmp_path_factory.mktemp("vocabulary")
    (folder / "tokenizer.json").write_text(json.dumps(spec))
    return folder


@pytest.fixture(scope="module")
def compiler(model_dir: Path) -> GrammarCompiler:
    return GrammarCompiler(model_dir, NUM_DEMO_TOKENS + len(CROSSING), [EOS])


@pytest.fixture(scope="module")
def texts(model_dir: Path) -> list[str]:
    """What each token adds to an output: characters that stand for bytes, and one for each special token that is
    shown."""
    tokenizer = LLTokenizer((model_dir / "tokenizer.json").read_text())
    special = {token["id"] for token in SPEC["added_tokens"]}
    return [
        shown(token_id)
        if token_id == TOOL_CALL
        else ""
        if token_id in special
        else tokenizer.decode_bytes([token_id]).decode("latin-1")
        for token_id in range(NUM_DEMO_TOKENS + len(CROSSING))
    ]


def shown(token_id: int) -> str:
    return chr(0x4000 + token_id)


def reference(grammar: PhasedGrammar) -> Reference:
    """Whether an output can be continued, found out without tokens: by looking for the triggers in its whole text, and
    following the last grammar byte by byte."""
    tokenizer = LLTokenizer(byte_tokenizer_json(["<|call|>", "<|eos|>"]), eos_token=NUM_BYTES + 1)
    matchers = [
        None
        if phase.grammar is None
        else LLMatcher(
            tokenizer,
            grammar_of_phase(phase._replace(grammar=phase.grammar.replace(f"<[{TOOL_CALL}]>", f"<[{NUM_BYTES}]>"))),
        )
        for phase in grammar.phases
    ]

    def is_possible(text: str) -> bool:
        number, at = grammar.begin, 0
        while True:
            phase, matcher = grammar.phases[number], matchers[number]
            found = []
            for trigger in phase.triggers:
                marker = "".join(part if isinstance(part, str) else shown(part) for part in trigger.marker)
                if matcher is not None:
                    match = re.compile(re.escape(marker)).match(text, at)
                elif trigger.at_start:
                    match = re.compile(r"\s*" + r"\s*".join(map(re.escape, marker))).match(text, at)
                else:
                    match = re.compile(re.escape(marker)).search(text, at)
                if match:
                    found.append((match.end(), marker, trigger.to))
            if found:
                end, marker, number = min(found)
                if grammar.phases[number].grammar is None:
                    at = end
                    continue
                text, at, matcher = marker + text[end:], 0, matchers[number]
            if matcher is None:
                return True
            ids = [NUM_BYTES if ord(c) >= 0x4000 else ord(c) for c in text[at:]]
            return matcher.deep_copy().try_consume_tokens(ids) == len(ids)

    return is_possible


def allowed_after(compiler: GrammarCompiler, spec: GrammarSpec, output: list[int]) -> tuple[bool, set[int]]:
    """Whether anything is forbidden after an output, and what may come, for a sequence that brings all of it."""
    follower = compiler.follow(spec, array("i", [1, *output]), 1)
    mask = np.empty(-(-(NUM_DEMO_TOKENS + len(CROSSING)) // 8), np.uint8)
    restricts = follower.restricts
    follower.write_allowed(mask)
    bits = np.unpackbits(mask, bitorder="little", count=NUM_DEMO_TOKENS + len(CROSSING))
    return restricts, set(np.flatnonzero(bits).tolist())


@pytest.mark.parametrize("name", SHAPES)
def test_every_output_belongs_to_the_grammar_and_nothing_else_is_forbidden(
    compiler: GrammarCompiler, texts: list[str], name: str
) -> None:
    grammar, spec = SHAPES[name], SHAPES[name].spec()
    is_possible = reference(grammar)
    tokenizer = tokenizers.Tokenizer.from_file(str(DEMO / "tokenizer.json"))
    pieces = [tokenizer.encode(piece).ids for piece in PIECES]
    pieces += [[NUM_DEMO_TOKENS + number] for number in range(len(CROSSING))] + [[TOOL_CALL]]
    calls = [tokenizer.encode(call).ids for call in BEGINNINGS]
    num_free = num_bound = 0
    for seed in range(16):
        rng = random.Random(seed)
        output: list[int] = []
        tokens = array("i", [1])
        follower = compiler.follow(spec, tokens, 1)
        planned = list(calls[seed // 2 % len(calls)]) if seed % 2 else []
        while len(output) < 40 and not follower.is_at_end:
            restricts, allowed = allowed_after(compiler, spec, output)
            assert restricts == follower.restricts  # it depends on the tokens alone
            assert restricts or len(allowed) == len(texts)
            text = "".join(texts[token_id] for token_id in output)
            is_free = len(allowed) > 3000
            num_free, num_bound = num_free + (not restricts), num_bound + restricts
            for token_id in rng.sample(range(9, len(texts)), 20) + [NUM_DEMO_TOKENS + n for n in range(len(CROSSING))]:
                if token_id in allowed:
                    assert is_possible(text + texts[token_id]), (text, texts[token_id])
                elif is_free and is_possible(text + texts[token_id]):
                    assert texts[token_id] in CROSSING, (text, texts[token_id])  # there are other ways to write that
            planned = planned or list(rng.choice(pieces))
            token_id = planned.pop(0)
            if token_id not in allowed or (is_free and len(output) > 8 and rng.random() < 0.2):
                planned = []
                token_id = rng.choice(sorted(allowed - set(range(TOOL_CALL)) or allowed))
            output.append(token_id)
            tokens.append(token_id)
        assert is_possible("".join(texts[token_id] for token_id in output))
    assert num_bound
    # Some tokens of this vocabulary contain `<call>` and more; where no output can contain that, most steps are free.
    assert (num_free > 0) == (name not in ("texts", "a grammar first")) or name == "a special token"


def test_only_the_ends_of_an_output_are_forbidden_where_it_must_not_end(compiler: GrammarCompiler) -> None:
    restricts, allowed = allowed_after(compiler, SHAPES["a special token"].spec(), [300, 301])
    assert restricts
    assert allowed == set(range(NUM_DEMO_TOKENS + len(CROSSING))) - {EOS}


def test_an_output_that_was_written_without_the_grammar_goes_on(compiler: GrammarCompiler) -> None:
    """By a worker of an older version, for instance."""
    spec = SHAPES["a special token"].spec()
    output = [TOOL_CALL, 300, 301]
    _, allowed = allowed_after(compiler, spec, output)
    assert len(allowed) == NUM_DEMO_TOKENS + len(CROSSING)
    follower = compiler.follow(spec, array("i", [1, *output]), 1)
    assert not follower.is_at_end
    assert not follower.restricts


def test_a_spec_that_cannot_be_read_is_refused(compiler: GrammarCompiler) -> None:
    for spec in ("", "[]", '[[[[[["x"], 7, false]], null, null, true]], 0, []]'):
        with pytest.raises(ValueError, match="no grammar of an output"):
            compiler.follow(GrammarSpec("output", spec), array("i", [1]), 1)


# In an engine.

TOOL = JSON.replace('"a"', '"n"').replace("}}, ", '}}, "additionalProperties": false, ')
LAZY = PhasedGrammar(
    (Phase((Trigger((TOOL_CALL,), 1),)), Phase(grammar=f"start: (<[{TOOL_CALL}]> json)+\njson: {TOOL}")),
    shown_ids=(TOOL_CALL,),
).spec()
PROMPT: list[int] = list(range(100, 130))


@pytest.fixture(scope="module")
def runner() -> ModelRunner:
    return build_runner(DEMO, EngineConfig(dtype="float32", page_tokens=8), 256)


class CountingRunner:
    """Counts the steps that are plainly greedy."""

    def __init__(self, runner: ModelRunner) -> None:
        self._runner = runner
        self.greedy: list[bool] = []

    def execute(self, plan: Any, rows: Any) -> Any:
        self.greedy.append(plan.greedy)
        return self._runner.execute(plan, rows)


@cache
def compiler_of(limits: EngineLimits) -> GrammarCompiler:
    """Shared by engines: it keeps nothing of a sequence."""
    return GrammarCompiler(DEMO, limits.vocab_size, limits.eos_token_ids)


def make_engine(runner: Any, book: GrammarCompiler | None = None, **overrides: Any) -> NativeEngine:
    values: dict[str, Any] = {"num_pages": 256, "max_num_seqs": 16, "max_step_tokens": 128, **overrides}
    limits = engine_limits(DEMO, EngineConfig(dtype="float32", page_tokens=8, **values))
    return NativeEngine(limits, runner, book or compiler_of(limits))


def outcome(engine: NativeEngine, *requests: Any) -> dict[str, Generated]:
    for request in requests:
        engine.add(request)
    return {key[0]: result for key, result in run(engine).items()}


def greedy(name: str, grammar: GrammarSpec | None, **params: Any) -> Any:
    return make_request(name, PROMPT, **{"max_tokens": 30, "temperature": 0.0, "grammar": grammar, **params})


def test_a_free_output_is_computed_as_one_without_a_grammar(runner: ModelRunner) -> None:
    counting = CountingRunner(runner)
    plain = outcome(make_engine(runner), greedy("r", None, ignore_eos=True))["r"]
    found = outcome(make_engine(counting), greedy("r", LAZY, ignore_eos=True))["r"]
    assert found.token_ids == plain.token_ids
    assert counting.greedy.count(False) == 1  # nothing is known before the first token
    assert len(counting.greedy) == 30


def call_after(num_free: int) -> dict[str, Any]:
    """Parameters with which the model calls, sooner or later."""
    return {"temperature": 1.0, "logit_bias": ((TOOL_CALL, 9.0 - num_free),), "max_tokens": 60, "seed": num_free}


@pytest.mark.parametrize("num_free", [0, 1, 3])
def test_calls_go_on_identically_elsewhere(runner: ModelRunner, num_free: int) -> None:
    params = call_after(num_free)
    whole = outcome(make_engine(runner), make_request("r", PROMPT, grammar=LAZY, **params))["r"]
    assert TOOL_CALL in whole.token_ids
    assert whole.finish_reason in ("stop", "length")
    for num_known in range(1, len(whole.token_ids), 5):
        known = whole.token_ids[:num_known]
        resumed = make_request("r", PROMPT, known, grammar=LAZY, **params)
        rest = outcome(make_engine(runner), resumed)["r"]
        assert (known + rest.token_ids, rest.finish_reason) == (whole.token_ids, whole.finish_reason)
    prefill = make_engine(runner)
    request = make_request("r", PROMPT, grammar=LAZY, **params)
    prefill.add_prefill(request, make_ticket(1, 0, prefill.limits.pages_for(len(PROMPT))))
    assert run(prefill)["r", 0].token_ids == whole.token_ids[:1]


def test_a_lack_of_pages_changes_no_call(runner: ModelRunner) -> None:
    requests = [make_request(f"r{i}", PROMPT, grammar=LAZY, **call_after(i % 3)) for i in range(5)]
    wide = outcome(make_engine(runner), *requests)
    narrow = make_engine(runner, num_pages=18)
    assert {name: r.token_ids for name, r in outcome(narrow, *requests).items()} == {
        name: r.token_ids for name, r in wide.items()
    }
    assert narrow.stats().total_preemptions > 0


def test_a_grammar_that_is_not_compiled_yet_holds_up_only_calls(runner: ModelRunner) -> None:
    class SlowCompiler(GrammarCompiler):
        def __init__(self, on_ready: Callable[[], None]) -> None:
            limits = make_engine(runner).limits
            super().__init__(DEMO, limits.vocab_size, limits.eos_token_ids, on_ready)
            self.may_compile = threading.Event()

        def _compile(self, grammar: Any) -> Any:
            assert self.may_compile.wait(60)
            return super()._compile(grammar)

    ready = threading.Semaphore(0)
    book = SlowCompiler(ready.release)
    engine = make_engine(runner, book)
    calls = {"temperature": 0.0, "logit_bias": ((TOOL_CALL, 1000.0),), "max_tokens": 12}
    engine.add(make_request("calls", PROMPT, grammar=LAZY, **calls))
    engine.add(greedy("talks", LAZY, ignore_eos=True, max_tokens=10))
    assert ready.acquire(timeout=60)  # the triggers are known
    engine.grammar_ready()
    before = {key[0]: result.token_ids for key, result in run(engine).items()}
    assert len(before["talks"]) == 10
    assert before["calls"] == [TOOL_CALL]
    assert not engine.has_work
    engine.check_integrity()
    book.may_compile.set()
    assert ready.acquire(timeout=60)
    engine.grammar_ready()
    after = {key[0]: result for key, result in run(engine).items()}
    assert after["calls"].finish_reason is not None
    engine.check_integrity()
