"""Grammars of requests: every form becomes the same thing; what nothing could follow is a 400 that names its field."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import orjson
import pytest

from slipstream.router.api.openai.body.structured_output import MAX_GRAMMAR_BYTES, RequestGrammars
from slipstream.router.api.openai.schema.completion_request import CompletionRequest
from slipstream.router.parsers.parser_names import ParserNames
from slipstream.router.process.open_files import allow_all_files
from slipstream.router.protocol.grammar import DEFAULT_JSON, JsonStyle
from slipstream.router.protocol.messages import EngineRequest, Generate, GrammarSpec
from slipstream.router.protocol.wire import decode_payload, encode_frame
from slipstream.router.structured_output.grammar_trial import TOO_COMPLEX, GrammarTrials, GrammarVerdict, TrialError
from slipstream.router.structured_output.json_schema.anything import DEFINITION, FREE_OBJECT, NAME
from tests.support.router.fake_cluster import MODEL, front, run

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
HI = [{"role": "user", "content": "hi"}]
SCHEMA = {"type": "object", "properties": {"b": {"type": "integer"}, "a": {"type": "string"}}, "required": ["b"]}
TEXT = orjson.dumps(SCHEMA).decode()
COMPACT = {"x-guidance": {"whitespace_flexible": False, "coerce_one_of": True}}
OPTIONAL = {
    "x-guidance": {
        "whitespace_flexible": False,
        "item_separator": ",[ ]?",
        "key_separator": ":[ ]?",
        "coerce_one_of": True,
    }
}
SPACED = {"x-guidance": {"whitespace_pattern": r"[ \t\n\r]{1,16}", "coerce_one_of": True}}


def json_grammar_spec(schema: dict[str, Any], options: dict[str, Any] = OPTIONAL) -> GrammarSpec:
    return GrammarSpec("json", orjson.dumps({**schema, **options}).decode())


CLOSED = json_grammar_spec({**SCHEMA, "additionalProperties": False})
FREE = {**FREE_OBJECT, "$defs": {NAME: DEFINITION}}
ANY = json_grammar_spec(FREE)
JSON_SCHEMA = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA, "strict": True}}
FORMS: list[tuple[dict[str, Any], GrammarSpec | None]] = [
    ({"response_format": {"type": "text"}}, None),
    ({"response_format": {"type": "json_object"}}, ANY),
    ({"response_format": JSON_SCHEMA}, CLOSED),
    (
        {"response_format": JSON_SCHEMA, "structured_outputs": {"whitespace": "any", "open_objects": True}},
        json_grammar_spec(SCHEMA, SPACED),
    ),
    ({"structured_outputs": {"json": SCHEMA}}, CLOSED),
    ({"structured_outputs": {"json": SCHEMA, "whitespace": "optional", "disable_any_whitespace": True}}, CLOSED),
    (
        {"response_format": JSON_SCHEMA, "structured_outputs": {"whitespace": "compact"}},
        json_grammar_spec({**SCHEMA, "additionalProperties": False}, COMPACT),
    ),
    ({"structured_outputs": {"json": SCHEMA, "open_objects": True}}, json_grammar_spec(SCHEMA)),
    ({"structured_outputs": {"json_object": True}}, ANY),
    ({"structured_outputs": {"json_object": True, "whitespace": "any"}}, json_grammar_spec(FREE, SPACED)),
    ({"structured_outputs": {"json_object": True, "open_objects": True}}, json_grammar_spec({"type": "object"})),
    ({"structured_outputs": {"regex": "a+"}}, GrammarSpec("regex", "a+")),
    ({"structured_outputs": {"choice": ["a", "é"]}}, GrammarSpec("choice", '["a","é"]')),
    ({"structured_outputs": {"grammar": 'start: "a"'}}, GrammarSpec("grammar", 'start: "a"')),
    ({"guided_json": SCHEMA}, CLOSED),
    ({"guided_json": TEXT}, CLOSED),
    ({"guided_regex": "[0-9]{3}"}, GrammarSpec("regex", "[0-9]{3}")),
    ({"guided_choice": ["yes", "no"]}, GrammarSpec("choice", '["yes","no"]')),
    ({"guided_grammar": 'root ::= "a" root | "b"'}, GrammarSpec("grammar", 'root ::= "a" root | "b"')),
    ({"guided_json": None, "structured_outputs": None}, None),
]
DEEP: dict[str, Any] = {"type": "integer"}
for _ in range(80):
    DEEP = {"anyOf": [DEEP]}
BAD: list[tuple[dict[str, Any], str]] = [
    (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "objct"}}}},
        "response_format.json_schema.schema",
    ),
    ({"guided_json": "{"}, "guided_json"),
    ({"guided_json": {"$ref": "http://127.0.0.1:1/x"}}, "guided_json"),
    ({"guided_json": {"$ref": "#"}}, "guided_json"),
    ({"guided_json": {"type": "integer", "multipleOf": 999983, "maximum": 1e300}}, "guided_json"),
    ({"guided_json": DEEP}, "guided_json"),
    ({"guided_json": {"enum": ["x" * MAX_GRAMMAR_BYTES]}}, "guided_json"),
    ({"structured_outputs": {"regex": "(ab"}}, "structured_outputs.regex"),
    ({"guided_regex": "(?=a)b"}, "guided_regex"),
    ({"guided_grammar": "start: nowhere"}, "guided_grammar"),
    ({"guided_grammar": "root ::= ((("}, "guided_grammar"),
    ({"guided_grammar": "hello"}, "guided_grammar"),
    ({"guided_grammar": 'start: %json {"multipleOf": 999983}'}, "guided_grammar"),
    ({"guided_json": {"multipleOf": 0.00123457}}, "guided_json"),
    ({"guided_json": {"properties": {name: {"multipleOf": 9973 - n} for n, name in enumerate("ab")}}}, "guided_json"),
    ({"guided_regex": "x?a{1000000000}"}, "guided_regex"),
    ({"guided_json": {"type": "string", "pattern": "^a{2,10000000}$"}}, "guided_json"),
    ({"guided_regex": "a{" + "1" * 5000 + "}"}, "guided_regex"),
    ({"guided_json": '{"multipleOf": 1' + "0" * 400 + "}"}, "guided_json"),
    ({"guided_json": '{"type":"number","minimum": 1' + "0" * 400 + "}"}, "guided_json"),
    ({"guided_json": r'{"enum":["\ud800"]}'}, "guided_json"),
    ({"guided_json": r'{"properties":{"\ud800":{}}}'}, "guided_json"),
    ({"guided_json": '{"enum":[' + '{"a":' * 400 + "1" + "}" * 400 + "]}"}, "guided_json"),
    ({"guided_grammar": "start: " + " | ".join(f'"{number}"' for number in range(2000))}, "guided_grammar"),
    ({"guided_regex": "a", "guided_choice": ["a"]}, "guided_choice"),
    ({"response_format": {"type": "json_object"}, "guided_regex": "a"}, "guided_regex"),
    ({"structured_outputs": {"regex": "a", "grammar": 'start: "a"'}}, "structured_outputs.grammar"),
    ({"structured_outputs": {"regex": "a", "whitespace": "any"}}, "structured_outputs"),
    ({"guided_regex": "a", "structured_outputs": {"open_objects": True}}, "structured_outputs"),
    ({"structured_outputs": {"whitespace": "any"}}, "structured_outputs.json"),
    (
        {"guided_json": {}, "structured_outputs": {"whitespace": "any", "disable_any_whitespace": True}},
        "structured_outputs.whitespace",
    ),
]


def body_of(path: str, fields: dict[str, Any]) -> dict[str, Any]:
    return {**({"messages": HI} if path == CHAT else {"prompt": "hi"}), **fields}


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_every_form_of_a_grammar_reaches_the_workers(path: str) -> None:
    async def main() -> None:
        async with front("abc", parsers=ParserNames("auto", "none")) as site:
            for fields, grammar in FORMS:
                status, answer = (await site.post(path, **body_of(path, fields)))[::2]
                assert status == 200, (fields, answer)
                sampling = site.service.requests[-1].sampling
                assert sampling.grammar == grammar
                message = Generate(1, EngineRequest("r", 0, b"", b"", sampling))
                assert decode_payload(encode_frame(message)[4:]) == message

    run(main)


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_what_nothing_can_follow_is_a_400_that_names_its_field(path: str) -> None:
    async def main() -> None:
        async with front("abc") as site:
            for fields, param in BAD * 2:  # the second time the verdict is known
                raw = json.dumps({"model": MODEL, **body_of(path, fields)}).encode()
                status, _, answer = await site.request("POST", path, raw)
                error = orjson.loads(answer)["error"]
                assert (status, error["param"], error["code"]) == (400, param, "invalid_value"), (fields, error)
                assert len(error["message"]) < 700
            assert site.service.requests == []

    run(main)


def test_a_grammar_that_only_leads_to_itself_is_told_in_words() -> None:
    async def main() -> None:
        async with front("abc") as site:
            for fields in ({"guided_json": {"$ref": "#"}}, {"guided_grammar": "start: start"}):
                answer = orjson.loads((await site.post(COMPLETIONS, **body_of(COMPLETIONS, fields)))[2])
                assert answer["error"]["message"].endswith("it refers to itself without end")

    run(main)


FATAL = {
    "/enum/0": r'{"enum":["\ud800"]}',
    "/properties": r'{"properties":{"\ud800":{"type":"string"}}}',
    "/enum/0/a": '{"enum":[' + '{"a":' * 400 + "1" + "}" * 400 + "]}",
    "/minimum": '{"type":"number","minimum":1' + "0" * 400 + "}",
    "/multipleOf": '{"multipleOf":1' + "0" * 5000 + "}",
}


@pytest.mark.parametrize("pointer", FATAL)
def test_a_schema_that_nothing_can_hold_is_refused_by_its_pointer_and_the_process_goes_on(
    pointer: str, trials: GrammarTrials
) -> None:
    assert trials.verdict(GrammarSpec("regex", "a+")).grammar is not None
    process = trials._process
    verdict = trials.verdict(GrammarSpec("json", FATAL[pointer]))
    assert verdict.grammar is None
    assert (verdict.fault or "").startswith(f"at {pointer}: ")
    assert trials._process is process


MANY = " | ".join(f'"{number}"' for number in range(2500))


@pytest.mark.parametrize(
    "grammar",
    [f"start: {MANY}", f'start: "x" ({MANY} | "y")', f'start: "x"+ (" " | "y" a)\na: "!" ({MANY})'],
    ids=["at the beginning", "behind a byte", "beside the way"],
)
def test_a_grammar_with_more_alternatives_than_workers_follow_is_refused(grammar: str, trials: GrammarTrials) -> None:
    assert "2000" in (trials.verdict(GrammarSpec("grammar", grammar)).fault or "")
    served = GrammarSpec("grammar", "start: " + " | ".join(f'"{number}"' for number in range(1999)))
    assert trials.verdict(served) == GrammarVerdict(served)


HOSTILE = [
    GrammarSpec("regex", "((a{1,1000}){1,1000}){1,1000}"),
    GrammarSpec("regex", "(.*a.{200}|.*b.{200}|.*c.{300})"),
    GrammarSpec("regex", "(a|aa)*" * 200 + "b{3000}"),
    GrammarSpec("json", '{"type":"array","minItems":100000000,"items":{"type":"integer"}}'),
    GrammarSpec(
        "json", json.dumps({"allOf": [{"anyOf": [{"required": [f"p{i}{j}"]} for j in range(9)]} for i in range(9)]})
    ),
    GrammarSpec(
        "json", json.dumps({"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(1500)}})
    ),
    GrammarSpec("json", '{"anyOf":[' * 60 + '{"type":"integer"}' + "]}" * 60),
    GrammarSpec("choice", json.dumps([f"choice {i}" for i in range(1024)])),
    GrammarSpec("grammar", "root ::= " + "(" * 5000),
    GrammarSpec("grammar", "root ::= " + '"a" | ' * 5000 + '"b"'),
    GrammarSpec("grammar", "root ::= root root | root"),
    GrammarSpec("grammar", 'start: ("a"{1,100000}){1,100000}'),
]


@pytest.mark.parametrize("grammar", HOSTILE, ids=lambda grammar: f"{grammar.kind}-{grammar.spec[:24]}")
@pytest.mark.timeout(30)
def test_hostile_grammars_get_a_verdict(grammar: GrammarSpec, trials: GrammarTrials) -> None:
    verdict = trials.verdict(grammar)
    assert (verdict.grammar is None) == (verdict.fault is not None)


@pytest.fixture(scope="module")
def trials() -> GrammarTrials:
    return GrammarTrials()


# What llguidance does not count, as `_check_divisors` would let it through if it did not look.
ENDLESS = GrammarSpec("json", json.dumps({"anyOf": [{"type": "integer", "multipleOf": 9973 - n} for n in range(50)]}))


@pytest.mark.timeout(60)
def test_a_grammar_whose_trial_does_not_end_ends_its_process_and_the_next_one_is_tried_by_another(
    trials: GrammarTrials, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import slipstream.router.protocol.grammar as g; g.MAX_DIVISOR = 10**300"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    lenient = GrammarTrials()
    assert lenient.verdict(GrammarSpec("regex", "a+")) == GrammarVerdict(GrammarSpec("regex", "a+"))
    assert lenient.verdict(ENDLESS) == GrammarVerdict(None, TOO_COMPLEX)
    assert lenient.verdict(GrammarSpec("regex", "(ab")).grammar is None
    assert lenient.verdict(GrammarSpec("regex", "b+")) == GrammarVerdict(GrammarSpec("regex", "b+"))
    assert "at /anyOf/1/multipleOf: " in (trials.verdict(ENDLESS).fault or "")


def test_a_trial_process_ends_with_whoever_asks_it() -> None:
    trials = GrammarTrials()
    assert trials.verdict(GrammarSpec("regex", "a+")).fault is None
    process = trials._process
    assert process is not None
    del trials
    gc.collect()
    assert process.returncode == 0


def test_where_no_grammar_can_be_tried_the_request_fails_and_does_not_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(TrialError, match="has ended with 1"):
        GrammarTrials().verdict(GrammarSpec("regex", "a+"))


def test_a_trial_is_heard_where_many_files_are_open() -> None:
    if allow_all_files() < 1200:
        pytest.skip("so many files may not be open here")
    with contextlib.ExitStack() as stack:
        while stack.enter_context(open(os.devnull)).fileno() < 1100:
            pass
        assert GrammarTrials().verdict(GrammarSpec("regex", "a+")).fault is None


class SlowTrials(GrammarTrials):
    """Says nothing until it is let go, and tells when two ask at once."""

    def __init__(self) -> None:
        super().__init__()
        self.grammars: list[GrammarSpec] = []
        self.is_asked, self.is_asked_twice, self.goes_on = threading.Event(), threading.Event(), threading.Event()

    def verdict(self, grammar: GrammarSpec, style: JsonStyle = DEFAULT_JSON) -> GrammarVerdict:
        (self.is_asked_twice if self.grammars else self.is_asked).set()
        self.grammars.append(grammar)
        assert self.goes_on.wait(10)
        return GrammarVerdict(grammar)


def test_a_grammar_waits_for_the_trial_of_one_whose_client_has_left() -> None:
    async def main() -> None:
        grammars = RequestGrammars()
        trials = grammars._trials = SlowTrials()
        first, second = (
            asyncio.create_task(grammars.of(CompletionRequest(model=MODEL, prompt="p", guided_regex=regex)))
            for regex in ("a", "b")
        )
        assert await asyncio.to_thread(trials.is_asked.wait, 10)
        first.cancel()
        await asyncio.wait([first])
        assert not await asyncio.to_thread(trials.is_asked_twice.wait, 0.2)
        trials.goes_on.set()
        assert await second == GrammarSpec("regex", "b")
        assert trials.grammars == [GrammarSpec("regex", "a"), GrammarSpec("regex", "b")]

    run(main)


def test_nobody_imports_the_library_before_the_first_grammar() -> None:
    program = (
        "import sys, slipstream.router.front.front, slipstream.workers.worker; "
        "sys.exit(any(name.startswith('llguidance') for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
