"""No body of a request for a response brings out a bug, and a bad one fails at its first fault."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from slipstream.router.api.openai.body.parsing import parse_body
from slipstream.router.api.openai.responses.body.request_body import ResponsesRequest
from slipstream.router.http.http_error import HttpError
from slipstream.router.http.reader import Request
from tests.support.router.fake_cluster import MODEL, front, run

PATH = "/v1/responses"
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4),
    max_leaves=8,
)
ITEMS: list[dict[str, Any]] = [
    {"role": "user", "content": "hi"},
    {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "yes", "annotations": []}]},
    {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "brief"}]},
    {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
    {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "c", "output": "x"},
    {"type": "custom_tool_call", "call_id": "d", "name": "g", "input": "x"},
    {"type": "custom_tool_call_output", "call_id": "d", "output": [{"type": "input_text", "text": "y"}]},
    {"type": "item_reference", "id": "msg_1"},
    {"type": "computer_call"},
]
TOOLS: list[dict[str, Any]] = [
    {"type": "function", "name": "f", "parameters": {"type": "object", "properties": {"a": {"type": "string"}}}},
    {"type": "custom", "name": "g", "format": {"type": "grammar", "syntax": "regex", "definition": "a+"}},
    {"type": "namespace", "name": "n", "tools": [{"type": "function", "name": "f"}]},
    {"type": "web_search"},
    {"type": "mcp"},
]
CHOICES: list[Any] = ["none", "auto", "required", {"type": "function", "name": "f"}, {"type": "custom", "name": "g"}]
CHOICES.append({"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "f"}]})


@st.composite
def objects(draw: st.DrawFn, kinds: list[dict[str, Any]]) -> dict[str, Any]:
    """One of the kinds, in some of them with a field of any value."""
    made = draw(st.sampled_from(kinds))
    if draw(st.integers(0, 3)):
        return made
    names = st.sampled_from(sorted({name for kind in kinds for name in kind})) | st.text(max_size=10)
    return {**made, draw(names): draw(JSON)}


@st.composite
def bodies(draw: st.DrawFn) -> dict[str, Any]:
    """Bodies that are right but for a few fields."""
    body: dict[str, Any] = {"model": MODEL, "input": draw(st.just("hi") | st.lists(objects(ITEMS), max_size=6))}
    if draw(st.booleans()):
        body |= {"tools": draw(st.lists(objects(TOOLS), max_size=4)), "tool_choice": draw(st.sampled_from(CHOICES))}
    names = st.sampled_from(sorted(ResponsesRequest.model_fields)) | st.text(max_size=10)
    return body | draw(st.dictionaries(names, JSON, max_size=2))


@settings(deadline=None)
@given(bodies())
def test_any_json_object_is_either_parsed_or_a_400_about_a_field(body: dict[str, Any]) -> None:
    request = Request("POST", "/", "", {}, orjson.dumps(body), keep_alive=True, http10=False)
    try:
        parse_body(request, ResponsesRequest)
    except HttpError as error:
        found = error
    else:
        return
    assert found.status == 400
    assert found.param is not None


def test_a_field_with_an_unprintable_name_is_named_in_printable_characters() -> None:
    async def main() -> None:
        async with front("abc") as site:
            status, _, answer = await site.post(PATH, input="hi", logit_bias={"\x07\U0001f642": []})
            error = orjson.loads(answer)["error"]
            assert (status, error["param"]) == (400, "logit_bias.\\x07🙂")
            assert error["param"] in error["message"]

    run(main)


@settings(max_examples=4, deadline=None, phases=[Phase.generate], suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(bodies(), min_size=16, max_size=16))
def test_no_body_brings_out_a_5xx_or_breaks_the_server(cases: list[dict[str, Any]]) -> None:
    async def main() -> None:
        async with front("abc") as site:
            for body in cases:
                body.pop("tools", None)  # each would be tried as a grammar, which takes long
                body.pop("tool_choice", None)
                status, _, answer = await site.request("POST", PATH, orjson.dumps(body))
                assert status in (200, 400, 404), (body, answer)
                if status != 200:
                    assert orjson.loads(answer)["error"]["message"].isprintable()
            assert (await site.post(PATH, input="hi"))[0] == 200

    run(main)


FLOODS = [
    b'"input":[0%b]' % (b",0" * 8000),
    b'"input":[0%b]' % (b",0" * 10_000),
    b'"input":[{"role":"user","content":[0%b]}]' % (b",0" * 8000),
    b'"input":[0%b]' % (b',{"role":"user","content":[0,0]}' * 5000),
    b'"input":"x","tools":[0%b]' % (b",0" * 1000),
    b'"input":"x","tools":[{"type":"namespace","name":"n","tools":[0%b]}]' % (b",0" * 1000),
]


@pytest.mark.parametrize("flood", range(len(FLOODS)))
def test_a_flood_of_faults_is_looked_at_no_further_than_the_first(flood: int) -> None:
    with pytest.raises(ValidationError) as caught:
        ResponsesRequest.model_validate_json(b'{"model":"m",%b}' % FLOODS[flood])
    assert caught.value.error_count() <= 2


def test_unknown_fields_are_ignored_and_named() -> None:
    async def main() -> None:
        async with front("abc") as site:
            items = [{"role": "user", "content": [{"type": "input_text", "text": "hi", "new": 1}], "own": 2}]
            status, headers, _ = await site.post(PATH, input=items, later=3)
            assert status == 200
            assert headers["x-slipstream-ignored"] == "later, input.*.own, input.*.content.*.new"

    run(main)
