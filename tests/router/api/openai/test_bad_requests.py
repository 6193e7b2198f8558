"""Whatever is wrong with a request gets a 4xx that names the field: never a 5xx, never silence."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from slipstream.router.api.openai.body.parsing import MIN_MAX_VALUES, parse_body
from slipstream.router.api.openai.schema.chat_request import ChatRequest
from slipstream.router.api.openai.schema.completion_request import CompletionRequest
from slipstream.router.config.router_config import ApiConfig
from slipstream.router.http.http_error import HttpError
from slipstream.router.http.reader import Request
from slipstream.router.protocol.generation import GenerateRequest
from tests.support.router.fake_cluster import MODEL, Script, front, run

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
HI = [{"role": "user", "content": "hi"}]
MISSING = object()
STRICT = ApiConfig(unknown_fields="refuse", overlong="refuse")


def nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


# field, wrong value, the param that the error names (None: the field itself)
BOTH = [
    ("model", 5, None),
    ("model", None, None),
    ("model", MISSING, None),
    ("max_tokens", 0, None),
    ("max_tokens", -1, None),
    ("max_tokens", 2**40, None),
    ("max_tokens", 10**400, None),
    ("max_tokens", "5", None),
    ("max_tokens", True, None),
    ("max_tokens", 1.5, None),
    ("min_tokens", -1, None),
    ("min_tokens", 1000, None),
    ("temperature", -0.1, None),
    ("temperature", 2.1, None),
    ("temperature", "1", None),
    ("temperature", True, None),
    ("temperature", [], None),
    ("top_p", 0, None),
    ("top_p", 1.1, None),
    ("top_k", -2, None),
    ("top_k", 1.0, None),
    ("min_p", 2, None),
    ("presence_penalty", -2.1, None),
    ("frequency_penalty", 2.1, None),
    ("repetition_penalty", 0, None),
    ("logit_bias", {"5": 101}, "logit_bias.5"),
    ("logit_bias", {"five": 1}, "logit_bias.five"),
    ("logit_bias", {"-1": 1}, "logit_bias.-1"),
    ("logit_bias", {"05": 1}, "logit_bias.05"),
    ("logit_bias", {"²": 1}, "logit_bias.²"),
    ("logit_bias", {"999999": 1}, None),
    ("logit_bias", {"5": "1"}, "logit_bias.5"),
    ("logit_bias", [1], None),
    ("logit_bias", {str(i): 1 for i in range(2000)}, None),
    ("seed", 2**63, None),
    ("seed", 1.5, None),
    ("n", 0, None),
    ("n", 129, None),
    ("n", "2", None),
    ("stop", "", "stop.0"),
    ("stop", ["a", ""], "stop.1"),
    ("stop", ["a"] * 17, None),
    ("stop", "x" * 513, "stop.0"),
    ("stop", 5, None),
    ("stop", [5], "stop.0"),
    ("stop_token_ids", [999999], None),
    ("stop_token_ids", [-1], "stop_token_ids.0"),
    ("stop_token_ids", [True], "stop_token_ids.0"),
    ("stop_token_ids", [1] * 129, None),
    ("ignore_eos", 1, None),
    ("include_stop_str_in_output", "yes", None),
    ("stream", "true", None),
    ("stream", 1, None),
    ("stream_options", {"include_usage": True}, None),
    ("stream_options", {"include_usage": "yes"}, "stream_options.include_usage"),
    ("priority", "high", None),
    ("priority", 2**40, None),
    ("user", 5, None),
    ("user", "x" * 513, None),
    ("metadata", {"a": 1}, "metadata.a"),
    ("metadata", "a", None),
    ("cache_salt", 5, None),
    ("regex", "a+", None),
    ("typical_p", 0.5, None),
    ("typical_p", True, None),
    ("mirostat", 2, None),
    ("lora_path", "x", None),
    ("max_new_tokens", 5, None),
    ("response_format", {"type": "json_schema"}, "response_format.json_schema"),
    (
        "response_format",
        {"type": "json_object", "json_schema": {"name": "x", "schema": {}}},
        "response_format.json_schema",
    ),
    ("response_format", {"type": "json_schema", "json_schema": {"schema": {}}}, "response_format.json_schema.name"),
    ("response_format", {"type": "json_schema", "json_schema": {"name": "x"}}, "response_format.json_schema.schema"),
    ("response_format", {"type": "grammar"}, "response_format.type"),
    ("response_format", {}, "response_format.type"),
    ("structured_outputs", {}, "structured_outputs.json"),
    ("structured_outputs", {"regex": 5}, "structured_outputs.regex"),
    ("structured_outputs", {"choice": []}, "structured_outputs.choice"),
    ("structured_outputs", {"choice": ["a", 5]}, "structured_outputs.choice.1"),
    ("structured_outputs", {"structural_tag": "x"}, "structured_outputs.structural_tag"),
    ("guided_json", 5, None),
    ("guided_json", [], None),
    ("guided_regex", "", None),
    ("guided_choice", "a", None),
    ("guided_choice", [""], "guided_choice.0"),
    ("guided_choice", ["a"] * 1025, None),
    ("guided_grammar", {}, None),
    ("response_format", "text", None),
    ("skip_special_tokens", 1, None),
    ("use_beam_search", True, "n"),
    ("use_beam_search", "yes", None),
    ("length_penalty", 1.1, None),
    ("length_penalty", 5.1, None),
    ("early_stopping", True, None),
    ("early_stopping", "always", None),
    ("truncate_prompt_tokens", 5, None),
    ("prompt_logprobs", -1, None),
    ("allowed_token_ids", [], None),
    ("allowed_token_ids", [-1], "allowed_token_ids.0"),
    ("allowed_token_ids", [5, 999999], None),
    ("bad_words", "x", None),
    ("bad_words", [""], "bad_words.0"),
    ("bad_words", ["x"] * 257, None),
    ("logits_processors", "x", None),
    ("logits_processors", [5], "logits_processors.0"),
    ("logits_processors", [{"args": {}}], "logits_processors.0.name"),
    ("logits_processors", [{"name": "x", "args": [1]}], "logits_processors.0.args"),
    ("logits_processors", [{"name": "x", "args": {"a": "x" * 5000}}], None),
    ("logits_processors", ["x"] * 9, None),
    ("return_token_ids", 1, None),
    ("kv_transfer_params", {"do_remote_decode": True}, None),
]
CHAT_ONLY = [
    ("messages", MISSING, None),
    ("messages", [], None),
    ("messages", "hi", None),
    ("messages", [5], "messages.0"),
    ("messages", [{"role": "user"}], "messages.0.content"),
    ("messages", [{"role": "user", "content": None}], "messages.0.content"),
    ("messages", [{"content": "hi"}], "messages.0.role"),
    ("messages", [*HI, {"role": "wizard", "content": "hi"}], "messages.1.role"),
    ("messages", [{"role": "user", "content": 5}], "messages.0.content"),
    ("messages", [{"role": "user", "content": []}], "messages.0.content"),
    ("messages", [{"role": "user", "content": ["hi"]}], "messages.0.content.0"),
    ("messages", [{"role": "user", "content": [{"type": "text"}]}], "messages.0.content.0.text"),
    (
        "messages",
        [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}],
        "messages.0.content.0.type",
    ),
    ("messages", [{"role": "tool", "content": "hi"}], "messages.0.tool_call_id"),
    ("messages", [*HI, {"role": "assistant", "content": "hi", "prefix": True}], "messages.1.prefix"),
    ("messages", [{"role": "assistant", "content": "hi", "reasoning_content": 5}], "messages.0.reasoning_content"),
    ("messages", [{"role": "assistant", "tool_calls": [{"id": "x"}]}], "messages.0.tool_calls.0.function"),
    ("messages", [*HI, {"role": "tool", "tool_call_id": "c", "content": "42"}], "messages.1.role"),
    ("messages", [{"role": "user", "content": "word " * 600}], None),
    ("messages", [{"role": "user", "content": "x" * 1_000_000}], None),
    ("max_completion_tokens", 0, None),
    ("logprobs", 1, None),
    ("top_logprobs", 2, None),
    ("top_logprobs", 21, None),
    ("tools", [{"type": "function", "function": {"name": "f g"}}], "tools.0.function.name"),
    ("tools", [{"type": "web_search"}], "tools.0.type"),
    ("tools", [{"type": "function", "function": {"name": f"f{i}"}} for i in range(1025)], None),
    ("tools", "x", None),
    ("tools", ["x"], "tools.0"),
    ("tool_choice", "required", None),
    ("tool_choice", {"type": "function", "function": {"name": "f"}}, None),
    ("functions", [{"name": ""}], "functions.0.name"),
    ("function_call", {"name": "f"}, None),
    ("modalities", ["text", "audio"], None),
    ("audio", {"voice": "x"}, None),
    ("prediction", "x", None),
    ("reasoning_effort", "huge", None),
    ("reasoning_effort", 3, None),
    ("verbosity", "loud", None),
    ("prompt_cache_retention", "1y", None),
    ("web_search_options", {}, None),
    ("best_of", 2, None),
    ("suffix", "x", None),
    ("store", "yes", None),
    ("service_tier", "turbo", None),
    ("parallel_tool_calls", "yes", None),
    ("chat_template_kwargs", 5, None),
    ("chat_template_kwargs", {"a": [1]}, "chat_template_kwargs.a"),
    ("chat_template_kwargs", {"a": {"b": "c"}}, "chat_template_kwargs.a"),
    ("chat_template_kwargs", {"a": "x" * 513}, "chat_template_kwargs.a"),
    ("chat_template_kwargs", {str(i): 1 for i in range(17)}, None),
    ("chat_template_kwargs", {"messages": "x"}, None),
    ("chat_template_kwargs", {"bos_token": "x"}, None),
    ("chat_template", "{{ messages }}", None),
    ("add_generation_prompt", False, None),
    ("continue_final_message", True, None),
    ("add_special_tokens", True, None),
    ("echo", True, None),
    ("include_reasoning", "no", None),
]
COMPLETIONS_ONLY = [
    ("prompt", MISSING, None),
    ("prompt", None, None),
    ("prompt", 5, None),
    ("prompt", {}, None),
    ("prompt", [], None),
    ("prompt", [[]], "prompt.0"),
    ("prompt", [1, "a"], "prompt.1"),
    ("prompt", ["a", 1], "prompt.1"),
    ("prompt", [1, True], "prompt.1"),
    ("prompt", [1.0], "prompt.0"),
    ("prompt", [-1], "prompt.0"),
    ("prompt", [999999], None),
    ("prompt", [2**40], "prompt.0"),
    ("prompt", [[1], [999999]], None),
    ("prompt", [5] * 512, None),
    ("prompt", "word " * 600, None),
    ("prompt", "x" * 1_000_000, None),
    ("prompt", ["a"] * 1025, None),
    ("logprobs", 21, None),
    ("logprobs", True, None),
    ("echo", "yes", None),
    ("best_of", 0, None),
    ("best_of", 129, None),
    ("suffix", "x", None),
    ("add_special_tokens", False, None),
    ("tools", [{"type": "function", "function": {"name": "f"}}], None),
    ("max_completion_tokens", 5, None),
    ("top_logprobs", 2, None),
    ("modalities", ["audio"], None),
]
REFUSED_IF_STRICT = [
    *(
        (path, *case)
        for path in (CHAT, COMPLETIONS)
        for case in (
            ("unknown_field", 1, None),
            ("temprature", 1, None),
            ("ids", 1, None),
            ("x" * 10_000, 1, "x" * 256),
        )
    ),
    (CHAT, "messages", [{"role": "user", "content": "hi", "colour": "red"}], "messages.0.colour"),
    (CHAT, "prompt", "hi", None),
    (CHAT, "max_completion_tokens", 512, "messages"),
    (COMPLETIONS, "messages", HI, None),
    (COMPLETIONS, "chat_template_kwargs", {}, None),
    (COMPLETIONS, "max_tokens", 512, "prompt"),
]
CASES = [
    *((CHAT, *case) for case in BOTH + CHAT_ONLY),
    *((COMPLETIONS, *case) for case in BOTH + COMPLETIONS_ONLY),
]


def encode(value: Any) -> bytes:
    """JSON with numbers of any size, which orjson does not write."""
    if isinstance(value, dict):
        return b"{%b}" % b",".join(orjson.dumps(key) + b":" + encode(item) for key, item in value.items())
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value).encode()
    return orjson.dumps(value)


@pytest.mark.parametrize(
    ("api", "cases"), [(ApiConfig(), CASES), (STRICT, CASES + REFUSED_IF_STRICT)], ids=["default", "strict"]
)
def test_every_wrong_value_is_a_400_that_names_its_field(api: ApiConfig, cases: list[Any]) -> None:
    async def main() -> None:
        async with front("abc", api=api) as site:
            for path, field, value, param in cases:
                body = {"model": MODEL, **({"messages": HI} if path == CHAT else {"prompt": "hi"})}
                body[field] = value
                if value is MISSING:
                    del body[field]
                status, _, answer = await site.request("POST", path, encode(body))
                shown = f"{path} {field}={str(value)[:60]}: {answer[:300]!r}"
                assert status == 400, shown
                error = orjson.loads(answer)["error"]
                assert error["param"] == (param or field), shown
                assert error["type"] == "invalid_request_error", shown
                assert error["message"], shown
            assert site.service.requests == []
            assert (await site.post(CHAT, messages=HI))[0] == 200

    run(main)


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"", "invalid_json"),
        (b"{", "invalid_json"),
        (b"[]", "invalid_type"),
        (b"null", "invalid_type"),
        (b'"text"', "invalid_type"),
        (b'{"model": "demo", "prompt": "\xff\xfe"}', "invalid_json"),
        (b'{"model": "demo", "prompt": "\\ud800"}', "invalid_json"),
        (b'{"model": "demo", "prompt": NaN}', None),
        (b'{"model": "demo", "prompt": "x", "temperature": NaN}', None),
        (b'{"model": "demo", "prompt": "x", "temperature": Infinity}', None),
        (b'{"model": "demo", "prompt": "x", "temperature": 1e999}', None),
        (b'{"model": "demo", "prompt": "x",}', "invalid_json"),
        (b'{"model": "demo", "prompt": "x"} trailing', "invalid_json"),
        (b"[" * 100_000, "invalid_json"),
        (b'{"a":' * 100_000, "invalid_json"),
    ],
)
def test_a_body_that_is_not_a_json_object_is_a_400(body: bytes, code: str | None) -> None:
    async def main() -> None:
        async with front("abc") as site:
            status, _, answer = await site.request("POST", COMPLETIONS, body)
            assert status == 400
            if code is not None:
                assert orjson.loads(answer)["error"]["code"] == code

    run(main)


@pytest.mark.parametrize(
    ("prompt", "max_tokens", "words"),
    [
        ([1.5], 1, "valid integer"),
        ([None], 1, "valid string"),
        ("hi", 512, "the output asked for has 512 tokens"),
        ([5] * 512, 1, "has 512 tokens and the output asked for has 1 token,"),
    ],
)
def test_what_is_said_of_a_bad_prompt_fits_it(prompt: object, max_tokens: int, words: str) -> None:
    async def main() -> None:
        async with front("abc", api=STRICT) as site:
            status, _, answer = await site.post(COMPLETIONS, prompt=prompt, max_tokens=max_tokens)
            assert (status, words in orjson.loads(answer)["error"]["message"]) == (400, True), answer

    run(main)


def test_another_content_type_is_refused_and_parameters_of_json_are_fine() -> None:
    async def main() -> None:
        async with front("abc") as site:
            body = {"model": MODEL, "prompt": "x"}
            for content_type, expected in (
                ("text/plain", 415),
                ("application/x-www-form-urlencoded", 415),
                ("application/json; charset=utf-8", 200),
                ("APPLICATION/JSON", 200),
            ):
                status, _, _ = await site.request("POST", COMPLETIONS, body, {"Content-Type": content_type})
                assert status == expected, content_type

    run(main)


def test_an_unknown_model_is_a_404_with_openais_code() -> None:
    async def main() -> None:
        async with front("abc") as site:
            for path, fields in ((CHAT, {"messages": HI}), (COMPLETIONS, {"prompt": "x"})):
                status, _, answer = await site.request("POST", path, {"model": "gpt-4", **fields})
                error = orjson.loads(answer)["error"]
                assert (status, error["code"], error["param"]) == (404, "model_not_found", "model")

    run(main)


@pytest.mark.parametrize(
    ("path", "hint"),
    [
        ("/chat/completions", "Did you mean /v1/chat/completions?"),
        ("/v1/assistants", "/v1/chat/completions, /v1/completions, "),
        ("/v1/embeddings", "/v1/chat/completions, /v1/completions, "),
    ],
)
def test_an_endpoint_that_is_not_served_is_a_404_that_names_those_that_are(path: str, hint: str) -> None:
    async def main() -> None:
        async with front("abc") as site:
            status, _, answer = await site.request("POST", path, b"{}")
            error = orjson.loads(answer)["error"]
            assert (status, error["code"]) == (404, "not_found")
            assert path in error["message"]
            assert hint in error["message"]

    run(main)


def test_too_long_a_prompt_says_the_numbers() -> None:
    async def main() -> None:
        async with front("abc", api=STRICT) as site:
            status, _, answer = await site.post(COMPLETIONS, prompt=[5] * 500, max_tokens=13)
            error = orjson.loads(answer)["error"]
            assert (status, error["code"]) == (400, "context_length_exceeded")
            for number in ("512", "500", "13"):
                assert number in error["message"]
            assert (await site.post(COMPLETIONS, prompt=[5] * 500, max_tokens=12))[0] == 200

    run(main)


def test_null_means_the_default_in_every_optional_field() -> None:
    async def main() -> None:
        async with front("abc") as site:
            for path, model in ((CHAT, ChatRequest), (COMPLETIONS, CompletionRequest)):
                body = dict.fromkeys(model.model_fields)
                body |= {"model": MODEL, **({"messages": HI} if path == CHAT else {"prompt": "x"})}
                status, _, answer = await site.request("POST", path, body)
                assert status == 200, answer

    run(main)


def test_what_vllms_clients_send_by_default_is_accepted() -> None:
    neutral: dict[str, object] = {
        "skip_special_tokens": True,
        "spaces_between_special_tokens": True,
        "use_beam_search": False,
        "length_penalty": 1.0,
        "bad_words": [],
        "logits_processors": [],
        "return_tokens_as_token_ids": False,
        "return_token_ids": False,
        "kv_transfer_params": {},
        "vllm_xargs": {},
        "truncate_prompt_tokens": None,
    }
    of_chat: dict[str, object] = {
        "add_generation_prompt": True,
        "continue_final_message": False,
        "add_special_tokens": False,
        "echo": False,
        "documents": [],
        "include_reasoning": True,
    }

    async def main() -> None:
        async with front("abc") as site:
            assert (await site.post(CHAT, messages=HI, **neutral, **of_chat))[0] == 200
            assert (await site.post(COMPLETIONS, prompt="hi", add_special_tokens=True, **neutral))[0] == 200

    run(main)


@pytest.mark.parametrize(
    ("path", "fields", "message"),
    [
        (
            CHAT,
            {"tools": [{"type": "web_search_preview"}]},
            "'tools.0.type': tools of type 'web_search_preview' are not supported; accepted: 'function'; describe the "
            "tool as a function, and run it in the client",
        ),
        (CHAT, {"tool_choice": "required"}, "'tool_choice' is only allowed when 'tools' are specified"),
        (
            CHAT,
            {"modalities": ["text", "audio"]},
            "'modalities': ['text', 'audio'] is not supported; accepted: ['text'], null",
        ),
        (CHAT, {"chat_template": "x" * 1000}, f"'chat_template': '{'x' * 64}...' is not supported; accepted: null"),
        (
            CHAT,
            {"service_tier": "turbo"},
            "Invalid value for 'service_tier': "
            "Input should be 'auto', 'default', 'flex', 'scale' or 'priority', got 'turbo'",
        ),
        (
            CHAT,
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
            "'messages.0.content.0.type': content parts of type 'image_url' are not supported; accepted: 'text'",
        ),
        (
            CHAT,
            {"temperature": 2.5},
            "Invalid value for 'temperature': Input should be less than or equal to 2, got 2.5",
        ),
        (
            CHAT,
            {"max_tokens": 10**400},
            "Invalid value for 'max_tokens': "
            "Input should be less than or equal to 2147483647, got a number of 1329 bits",
        ),
        (
            CHAT,
            {"stop": ["a\r\nx-evil: 1\x00"] * 2, "n": True},
            "Invalid value for 'n': Input should be a valid integer, got true",
        ),
        (CHAT, {"user": "\r\n\x1b[31m" * 200}, None),
        (COMPLETIONS, {"best_of": 2, "n": 3}, "'best_of' is 2, less than `n`, 3"),
        (
            COMPLETIONS,
            {"best_of": 3, "n": 2, "stream": True},
            "'best_of' is 3, more than `n`, 2: which are the best is known only at the end of all, not in a stream",
        ),
        (
            CHAT,
            {"use_beam_search": True, "n": 4, "temperature": 0.7},
            "'temperature': 0.7 is not supported; accepted: 0, 0.0, 1, 1.0, null; "
            "it does not go with `use_beam_search`",
        ),
        (
            CHAT,
            {"use_beam_search": True, "n": 9},
            "'n' is the number of beams where `use_beam_search` is true: 2 to 8, got 9",
        ),
        (CHAT, {"use_beam_search": True, "n": 4, "functions": [{"name": "f"}]}, None),
        (CHAT, {"length_penalty": 2}, "'length_penalty' is only allowed where `use_beam_search` is true"),
        (COMPLETIONS, {"suffix": "end"}, "'suffix': 'end' is not supported; accepted: '', null"),
        (COMPLETIONS, {"mirostat": 2}, "'mirostat': 2 is not supported; accepted: 0, 0.0, null"),
    ],
)
def test_a_refusal_names_the_field_the_value_and_what_is_accepted(
    path: str, fields: dict[str, Any], message: str | None
) -> None:
    async def main() -> None:
        async with front("abc") as site:
            body = {"model": MODEL, **({"messages": HI} if path == CHAT else {"prompt": "hi"}), **fields}
            status, _, answer = await site.request("POST", path, encode_any(body))
            reply = orjson.loads(answer)["error"]["message"]
            assert status == 400
            assert reply.isprintable()
            assert len(reply) < 500
            assert message is None or reply == message + "."

    run(main)


def test_an_assistant_message_as_the_client_library_gives_it_back_is_accepted() -> None:
    async def main() -> None:
        async with front("abc") as site:
            said = {
                "role": "assistant",
                "content": "hello",
                "refusal": None,
                "annotations": None,
                "audio": None,
                "function_call": None,
                "tool_calls": None,
                "reasoning": None,
                "reasoning_content": None,
            }
            assert (await site.post(CHAT, messages=[*HI, said, *HI]))[0] == 200

    run(main)


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4),
    max_leaves=8,
)


@st.composite
def bodies(draw: st.DrawFn) -> tuple[type[ChatRequest] | type[CompletionRequest], dict[str, Any]]:
    """Bodies that are right but for a few fields."""
    model = draw(st.sampled_from([ChatRequest, CompletionRequest]))
    body: dict[str, Any] = {"model": MODEL, **({"messages": HI} if model is ChatRequest else {"prompt": "x"})}
    names = st.sampled_from(sorted(model.model_fields)) | st.text(max_size=10)
    return model, body | draw(st.dictionaries(names, JSON, max_size=4))


@settings(deadline=None)
@given(bodies())
@example((ChatRequest, {"model": MODEL, "messages": HI, "~thinking": None}))
def test_any_json_object_is_either_parsed_or_a_400_about_a_field(
    case: tuple[type[ChatRequest] | type[CompletionRequest], dict[str, Any]],
) -> None:
    model, body = case
    request = Request("POST", "/", "", {}, encode_any(body), keep_alive=True, http10=False)
    try:
        parse_body(request, model)
    except HttpError as error:
        found = error
    else:
        return
    assert found.status == 400
    assert found.param is not None


@settings(deadline=None)
@given(st.binary(max_size=60))
def test_any_bytes_are_a_400(body: bytes) -> None:
    request = Request("POST", "/", "", {}, body, keep_alive=True, http10=False)
    with pytest.raises(HttpError) as caught:
        parse_body(request, ChatRequest)
    assert caught.value.status == 400


@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(bodies(), min_size=20, max_size=20))
def test_no_body_brings_out_a_5xx_or_breaks_the_server(
    cases: list[tuple[type[ChatRequest] | type[CompletionRequest], dict[str, Any]]],
) -> None:
    def script(request: GenerateRequest) -> Script:
        return Script([70, 71, 72], tokens_a_delta=2)

    async def main() -> None:
        async with front("abc") as site:
            site.service.script = script
            for model, body in cases:
                status, _, answer = await site.request(
                    "POST", CHAT if model is ChatRequest else COMPLETIONS, encode_any(body)
                )
                assert status in (200, 400, 404), (body, answer)
            assert (await site.post(CHAT, messages=HI))[0] == 200

    run(main)


FLOODS: list[tuple[type[ChatRequest] | type[CompletionRequest], bytes]] = [
    (CompletionRequest, b'"prompt":[1%b]' % (b',""' * 10_000)),
    (CompletionRequest, b'"prompt":[[1%b]]' % (b',""' * 10_000)),
    (CompletionRequest, b'"prompt":[""%b]' % (b",1" * 1000)),
    (CompletionRequest, b'"prompt":"x","logit_bias":{%b}' % b",".join(b'"%d":""' % i for i in range(10_000))),
    (ChatRequest, b'"messages":[0%b]' % (b",0" * 8000)),
    (ChatRequest, b'"messages":[0%b]' % (b",0" * 10_000)),
    (ChatRequest, b'"messages":[{"role":"user","content":[0%b]}]' % (b",0" * 8000)),
    (ChatRequest, b'"messages":[{"role":"user","content":[0%b]}]' % (b",0" * 10_000)),
    (ChatRequest, b'"messages":[0%b]' % (b',{"role":"user","content":[0,0]}' * 5000)),
]


@pytest.mark.parametrize("flood", range(len(FLOODS)))
def test_a_flood_of_faults_is_looked_at_no_further_than_the_first(flood: int) -> None:
    model, fields = FLOODS[flood]
    with pytest.raises(ValidationError) as caught:
        model.model_validate_json(b'{"model":"m",%b}' % fields)
    assert caught.value.error_count() <= 2  # a message may lack its role and its content


def test_a_flood_of_unknown_fields_is_counted_but_not_listed() -> None:
    body = {"model": MODEL, "prompt": "x"} | {f"x{i}": 0 for i in range(10_000)}
    request = Request("POST", "/", "", {}, orjson.dumps(body), keep_alive=True, http10=False)
    with pytest.raises(HttpError, match="10000 unknown or invalid fields") as caught:
        parse_body(request, CompletionRequest)
    assert caught.value.status == 400


@pytest.mark.parametrize("value", [b"[],", b"1,", b'"",', b"{},", b"[[[[[["])
def test_a_body_of_more_values_than_any_prompt_has_is_not_parsed(value: bytes) -> None:
    many = b'{"model":"m","prompt":[%b' % (value * (MIN_MAX_VALUES // value.count(b",") if b"," in value else 300_000))
    request = Request("POST", "/", "", {}, many, keep_alive=True, http10=False)
    with pytest.raises(HttpError, match="commas and brackets") as caught:
        parse_body(request, CompletionRequest)
    assert (caught.value.status, caught.value.code) == (413, "body_too_large")


def test_the_longest_prompts_of_a_model_are_parsed_as_text_and_as_ids() -> None:
    max_model_len = 1 << 18
    for prompt in ([7] * (max_model_len - 1), "[],{" * max_model_len, "x" * (4 << 20)):
        body = orjson.dumps({"model": MODEL, "prompt": prompt})
        request = Request("POST", "/", "", {}, body, keep_alive=True, http10=False)
        assert parse_body(request, CompletionRequest, lambda: max_model_len).prompt == prompt


def test_messages_may_have_many_parts_but_not_without_end() -> None:
    def messages(num_messages: int, num_parts: int) -> list[dict[str, Any]]:
        return [{"role": "user", "content": [{"type": "text", "text": ""}] * num_parts}] * num_messages

    assert len(ChatRequest(model=MODEL, messages=messages(128, 64)).messages) == 128
    with pytest.raises(ValidationError, match="more than 8192 messages or parts"):
        ChatRequest(model=MODEL, messages=messages(128, 65))


def encode_any(value: Any) -> bytes:
    """`encode`, deeply."""
    if isinstance(value, dict):
        return b"{%b}" % b",".join(encode_any(key) + b":" + encode_any(item) for key, item in value.items())
    if isinstance(value, list):
        return b"[%b]" % b",".join(map(encode_any, value))
    if isinstance(value, str):
        return orjson.dumps(value.encode("utf-8", "replace").decode())
    return encode(value)
