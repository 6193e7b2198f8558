"""Bad input, bad manners and too much of everything: a 4xx that names the field, and the next request is served."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import openai
import pytest

from tests.support.e2e.observation import Scrape, moved, wait_until_at_rest, wait_until_clear
from tests.support.e2e.raw_connection import connected, post, read_to_end, read_until
from tests.support.e2e.serving_cluster import ServingCluster
from tests.support.e2e.streams import MODEL, complete, prompt_of

GOOD = prompt_of(40, variant=90)
COMPLETION = {"model": MODEL, "prompt": "def f():", "max_tokens": 4}
NUM_HEAVY, HEAVY_TOKENS = 4, 700
CHAT = {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4}


@pytest.fixture(autouse=True)
def a_good_request_right_after_is_served(cluster: ServingCluster, client: openai.OpenAI) -> Iterator[None]:
    expected = complete(client, GOOD, 4)
    yield
    assert complete(client, GOOD, 4) == expected
    wait_until_at_rest(cluster)


@pytest.fixture
def web(cluster: ServingCluster) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=cluster.base_url, timeout=60) as web:
        yield web


def raw(**fields: str) -> bytes:
    """The body of a completion in which some values are written out as they stand, valid JSON or not."""
    written = {key: json.dumps(value) for key, value in COMPLETION.items()} | fields
    return ("{" + ",".join(f'"{key}":{value}' for key, value in written.items()) + "}").encode()


BAD_COMPLETIONS: list[tuple[str, bytes, str | None]] = [
    ("nothing", b"", None),
    ("broken JSON", b'{"model": "slipstream-demo", "prompt": ', None),
    ("no object", b"[1, 2]", None),
    ("deep nesting", b"[" * 100_000, None),
    ("invalid UTF-8", b'{"model": "slipstream-demo", "prompt": "\xff\xfe"}', None),
    ("half a surrogate", raw(prompt='"\\ud800"'), None),
    ("no prompt", b'{"model": "slipstream-demo"}', "prompt"),
    ("prompt of a wrong type", raw(prompt="42"), "prompt"),
    ("empty list", raw(prompt="[]"), "prompt"),
    ("unknown token id", raw(prompt="[99999999]"), "prompt"),
    ("negative token id", raw(prompt="[-1]"), "prompt.0"),
    ("huge token id", raw(prompt="[1" + "0" * 30 + "]"), "prompt.0"),
    ("prompt over the context", raw(prompt=json.dumps(prompt_of(4097))), "prompt"),
    ("text over the context", raw(prompt=json.dumps("import os\n" * 40_000)), "prompt"),
    ("negative max_tokens", raw(max_tokens="-1"), "max_tokens"),
    ("no max_tokens", raw(max_tokens="0"), "max_tokens"),
    ("huge max_tokens", raw(max_tokens="1" + "0" * 30), "max_tokens"),
    ("max_tokens as text", raw(max_tokens='"4"'), "max_tokens"),
    ("fractional max_tokens", raw(max_tokens="1.5"), "max_tokens"),
    ("temperature NaN", raw(temperature="NaN"), "temperature"),
    ("temperature infinite", raw(temperature="Infinity"), "temperature"),
    ("temperature huge", raw(temperature="1e999"), "temperature"),
    ("temperature negative", raw(temperature="-0.1"), "temperature"),
    ("top_p zero", raw(top_p="0"), "top_p"),
    ("n zero", raw(n="0"), "n"),
    ("n huge", raw(n="1000000"), "n"),
    ("seed huge", raw(seed="1" + "0" * 40), "seed"),
    ("too many stops", raw(stop=json.dumps(["x"] * 100)), "stop"),
    ("empty stop", raw(stop='[""]'), "stop.0"),
    ("logit_bias of no token", raw(logit_bias='{"x": 1}'), "logit_bias.x"),
    ("logit_bias of an unknown token", raw(logit_bias='{"99999": 1}'), "logit_bias"),
    ("logit_bias out of range", raw(logit_bias='{"5": 1000}'), "logit_bias.5"),
    ("logprobs out of range", raw(logprobs="1000"), "logprobs"),
    ("min_tokens over max_tokens", raw(min_tokens="5"), "min_tokens"),
    ("a field that is not served", raw(suffix='"end"'), "suffix"),
    ("stream_options without a stream", raw(stream_options='{"include_usage": true}'), "stream_options"),
]
BAD_CHATS: list[tuple[str, dict[str, Any], str]] = [
    ("no messages", {"messages": []}, "messages"),
    ("messages of a wrong type", {"messages": "Hi"}, "messages"),
    ("unknown role", {"messages": [{"role": "narrator", "content": "x"}]}, "messages.0.role"),
    ("no content", {"messages": [{"role": "user"}]}, "messages.0.content"),
    ("an image", {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages.0.content.0.type"),
    ("a tool without a name", {"tools": [{"type": "function", "function": {}}]}, "tools.0.function.name"),
    (
        "a result without a call",
        {"messages": [{"role": "tool", "tool_call_id": "x", "content": "x"}]},
        "messages.0.role",
    ),
    ("no json_schema", {"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
    ("a bad grammar", {"guided_regex": "(("}, "guided_regex"),
    ("top_logprobs without logprobs", {"top_logprobs": 2}, "top_logprobs"),
    ("two different limits", {"max_completion_tokens": 5}, "max_tokens"),
]


@pytest.mark.parametrize(("body", "param"), [case[1:] for case in BAD_COMPLETIONS], ids=[c[0] for c in BAD_COMPLETIONS])
def test_a_bad_completion_is_a_400_that_names_the_field(web: httpx.Client, body: bytes, param: str | None) -> None:
    answer = web.post("/v1/completions", content=body, headers={"Content-Type": "application/json"})
    check_error(answer, 400, param)


@pytest.mark.parametrize(("fields", "param"), [case[1:] for case in BAD_CHATS], ids=[case[0] for case in BAD_CHATS])
def test_a_bad_chat_is_a_400_that_names_the_field(web: httpx.Client, fields: dict[str, Any], param: str) -> None:
    check_error(web.post("/v1/chat/completions", json=CHAT | fields), 400, param)


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_an_unknown_model_is_a_404_that_names_it(web: httpx.Client, path: str) -> None:
    body = (COMPLETION if path == "/v1/completions" else CHAT) | {"model": "gpt-4o"}
    check_error(web.post(path, json=body), 404, "model")


def check_error(answer: httpx.Response, status: int, param: str | None) -> None:
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert error["param"] == param, error
    assert error["message"]
    assert error["type"] == "invalid_request_error"


def test_an_unknown_route_is_a_404_and_a_wrong_method_a_405(web: httpx.Client) -> None:
    check_error(web.get("/v2/nothing"), 404, None)
    wrong = web.get("/v1/completions")
    check_error(wrong, 405, None)
    assert wrong.headers["allow"] == "POST, OPTIONS"
    check_error(
        web.post("/v1/completions", content=b"prompt=x", headers={"Content-Type": "text/plain"}), 415, "Content-Type"
    )


def test_a_body_of_100_mb_is_refused_without_being_read(cluster: ServingCluster) -> None:
    with connected(cluster) as connection:
        connection.sendall(
            b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            b"Content-Length: 100000000\r\n\r\n{"
        )
        assert read_until(connection, b"\r\n").startswith(b"HTTP/1.1 413 ")


def test_a_body_of_100_mb_that_does_not_say_so_is_refused_on_the_way(cluster: ServingCluster) -> None:
    megabyte = b"100000\r\n" + b" " * 0x100000 + b"\r\n"
    with connected(cluster) as connection:
        connection.sendall(
            b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n"
        )
        sent = 0
        try:
            while sent < 100:
                connection.sendall(megabyte)
                sent += 1
        except OSError:
            assert 16 <= sent < 100  # it has been cut off, but not before the limit
            return
        assert read_until(connection, b"\r\n").startswith(b"HTTP/1.1 413 ")


@pytest.mark.parametrize(
    "data", [b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", b"GET / HTTP/9.9\r\n\r\n", b"\r\n\r\n \r\n"]
)
def test_what_is_no_http_gets_an_answer_and_is_cut_off(cluster: ServingCluster, data: bytes) -> None:
    with connected(cluster) as connection:
        connection.sendall(data)
        assert read_to_end(connection).startswith(b"HTTP/1.1 4") or data.isspace()


def test_clients_that_stop_in_the_middle_of_a_request_are_cut_off_while_others_are_served(
    cluster: ServingCluster, client: openai.OpenAI
) -> None:
    """`header_timeout_s` is 2."""
    halves = (b"", b"POST /v1/compl", b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Le")
    with connected(cluster) as silent, connected(cluster) as in_line, connected(cluster) as in_header:
        for connection, half in zip((silent, in_line, in_header), halves, strict=True):
            connection.sendall(half)
        assert complete(client, GOOD, 4)
        for connection in (in_line, in_header):
            assert read_to_end(connection).startswith(b"HTTP/1.1 408 ")


def num_connections(serving: ServingCluster) -> float:
    return Scrape.of(serving).value("slipstream:http_connections")


def ask_for_megabytes() -> bytes:
    """A request whose answer does not fit the buffers on its way: about 2 kB a token."""
    fields = {"n": NUM_HEAVY, "max_tokens": HEAVY_TOKENS, "logprobs": True, "top_logprobs": 20, "temperature": 1}
    return post("/v1/chat/completions", messages=CHAT["messages"], **fields)


def test_a_slow_reader_holds_up_nobody_and_no_page_and_gets_all_in_the_end(
    cluster: ServingCluster, client: openai.OpenAI
) -> None:
    with connected(cluster, receive_buffer_bytes=4096) as connection:
        connection.sendall(ask_for_megabytes())
        answer = http.client.HTTPResponse(connection)
        answer.begin()
        begin = answer.readline()
        assert complete(client, GOOD, 4)
        wait_until_at_rest(cluster)  # generated, and given back, although the client has not read it
        events = (begin + answer.read()).split(b"\n\n")
    num_tokens = NUM_HEAVY * HEAVY_TOKENS
    assert events[-2:] == [b"data: [DONE]", b""]
    choices = [json.loads(event.removeprefix(b"data: "))["choices"][0] for event in events[:-2]]
    assert sorted(choice["index"] for choice in choices if choice["finish_reason"] == "length") == list(
        range(NUM_HEAVY)
    )
    assert sum(len(choice["logprobs"]["content"]) for choice in choices if choice["logprobs"]) == num_tokens


def test_a_client_that_never_reads_is_cut_off(cluster: ServingCluster, client: openai.OpenAI) -> None:
    """`write_timeout_s` is 12."""
    before = num_connections(cluster)
    with connected(cluster, receive_buffer_bytes=4096) as connection:
        connection.sendall(ask_for_megabytes())
        assert complete(client, GOOD, 4)
        assert num_connections(cluster) == before + 1

        def still_there() -> list[str]:
            left = num_connections(cluster) - before
            return [f"{left:g} connections too many"] if left > 0 else []

        wait_until_clear(cluster, still_there, 60)


def test_a_hundred_requests_at_once_are_all_answered(cluster: ServingCluster, client: openai.OpenAI) -> None:
    """More than the decode worker has slots or pages for, and some of them far too long for its queue."""
    before = Scrape.of(cluster)
    prompts = [prompt_of((5, 40, 400)[number % 3], variant=100 + number) for number in range(100)]
    with ThreadPoolExecutor(100) as pool:
        texts = list(pool.map(lambda prompt: complete(client, prompt, 20), prompts))
    assert all(texts)
    assert texts[:6] == [complete(client, prompt, 20) for prompt in prompts[:6]]
    after = Scrape.of(cluster)
    assert moved(before, after, "slipstream:finishes_total", outcome="length") == 106


def test_many_clients_that_come_and_go_leave_nothing(cluster: ServingCluster) -> None:
    before = num_connections(cluster)
    for number in range(60):
        with connected(cluster) as connection:
            connection.sendall(post(prompt=prompt_of(10 + number, variant=300 + number), max_tokens=400))
            if number % 3 == 0:
                read_until(connection, b"data: ")
    wait_until_at_rest(cluster)

    def still_there() -> list[str]:
        left = num_connections(cluster) - before
        return [f"{left:g} connections too many"] if left > 0 else []

    wait_until_clear(cluster, still_there, 30)


def test_greedy_text_is_the_same_alone_and_among_others(cluster: ServingCluster, client: openai.OpenAI) -> None:
    alone = [complete(client, prompt_of(30 + 7 * number, variant=400 + number), 30) for number in range(8)]
    with ThreadPoolExecutor(8) as pool:
        together = list(
            pool.map(
                lambda number: complete(client, prompt_of(30 + 7 * number, variant=400 + number), 30, "x"), range(8)
            )
        )
    assert together == alone
