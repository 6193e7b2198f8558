"""A router with front processes: real processes, real sockets, workers played by the test."""

from __future__ import annotations

import asyncio
import logging
import os
import pickle
import re
import signal
from collections import Counter
from dataclasses import fields
from pathlib import Path

import orjson
import pytest
import yaml

from slipstream.router.access.api_key import digest_of
from slipstream.router.catalog.served_model import ModelSource
from slipstream.router.config.access_config import AccessConfig
from slipstream.router.config.router_config import ApiConfig, HttpConfig, RouterConfig
from slipstream.router.frontends.front_messages import Submit
from slipstream.router.frontends.front_setup import LogStyle
from slipstream.router.frontends.tally import FrontTally, counts_of
from slipstream.router.observability.front_counts import FrontMetrics
from slipstream.router.observability.tracing.tracer import TraceCounts
from slipstream.router.process.addresses import Endpoint
from slipstream.router.protocol.generation import GenerateRequest
from slipstream.router.protocol.messages import SamplingParams, pack_ids
from slipstream.router.router import Router
from tests.router.test_http_router import TOKEN, Exchange, ask, completion
from tests.support.router.fake_cluster import MODEL, MODEL_DIR, run
from tests.support.router.routing import NUM_CLIENTS, NUM_FRONTS, fronts_of, routing, stream_of, until


def test_several_fronts_serve_one_port_and_their_counts_add_up() -> None:
    async def main() -> None:
        async with routing(api=ApiConfig(overlong="refuse")) as (router, addresses, _):
            body = completion(max_tokens=3, ignore_eos=True, made_up=1)
            answers = await asyncio.gather(
                *(ask(addresses.http, "POST", "/v1/completions", body) for _ in range(NUM_CLIENTS))
            )
            assert {status for status, _ in answers} == {200}
            assert orjson.loads(answers[0][1])["usage"]["completion_tokens"] == 3
            bad = await ask(addresses.http, "POST", "/v1/completions", completion(max_tokens=10**6))
            assert bad[0] == 400
            assert len(set(fronts_of(router).pids)) == NUM_FRONTS
            expected = [
                b'vllm:generation_tokens_total{model_name="%b"} %d.0' % (MODEL.encode(), 3 * NUM_CLIENTS),
                b'vllm:prompt_tokens_total{model_name="%b"} %d.0' % (MODEL.encode(), 5 * NUM_CLIENTS),
                b'vllm:e2e_request_latency_seconds_count{model_name="%b",version=""} %d.0'
                % (MODEL.encode(), NUM_CLIENTS),
                b'slipstream:http_responses_total{status="400"} 1.0',
                b'slipstream:ignored_fields_total{field="made_up"} %d.0' % NUM_CLIENTS,
            ]
            page = b""
            async with asyncio.timeout(30):  # other fronts than the one that is asked tell their counts in a while
                while not all(line in page for line in expected):
                    page = (await ask(addresses.http, "GET", "/metrics"))[1]
            for _ in range(NUM_CLIENTS):  # and the sums do not depend on whom one asks
                page = (await ask(addresses.http, "GET", "/metrics"))[1]
                assert all(line in page for line in expected), page

    run(main, deadline_s=110)


def test_whatever_front_is_asked_it_explains_every_request_and_knows_all_usage() -> None:
    async def main() -> None:
        async with routing() as (_, addresses, _):
            status, answer = await ask(
                addresses.http, "POST", "/v1/completions", completion(max_tokens=2, explain=True)
            )
            reply = orjson.loads(answer)
            assert status == 200
            (explained,) = reply["slipstream"]["explain"]
            assert explained["request_id"] == reply["id"]
            async with asyncio.timeout(30):
                while not orjson.loads((await ask(addresses.http, "GET", "/v1/usage"))[1])["data"]:
                    pass  # the front tells it after it has answered
            for _ in range(NUM_CLIENTS):
                status, page = await ask(addresses.http, "GET", f"/v1/requests/{reply['id']}/explain")
                assert status == 200
                assert orjson.loads(page)["request_id"] == reply["id"]
                status, page = await ask(addresses.http, "GET", "/v1/usage")
                (account,) = orjson.loads(page)["data"]
                assert (account["num_requests"], account["completion_tokens"]) == (1, 2)
            assert (await ask(addresses.http, "GET", "/v1/requests/missing/explain"))[0] == 404
            assert (await ask(addresses.http, "GET", "/nowhere"))[0] == 404
            assert (await ask(addresses.http, "DELETE", "/v1/models"))[0] == 405
            status, models = await ask(addresses.http, "GET", "/v1/models")
            assert orjson.loads(models)["data"][0]["max_model_len"] == 1000

    run(main, deadline_s=110)


def test_what_the_dispatcher_refuses_is_the_same_answer_as_without_fronts() -> None:
    async def main() -> None:
        async with routing() as (router, addresses, _):
            router.service.stop_admission()
            status, answer = await ask(addresses.http, "POST", "/v1/completions", completion(max_tokens=1))
            assert status == 503
            assert orjson.loads(answer)["error"]["code"] == "shutting_down"

    run(main, deadline_s=110)


def test_a_client_that_leaves_a_front_frees_the_worker() -> None:
    async def main() -> None:
        async with routing() as (router, addresses, worker):
            worker.may_go_on.clear()
            exchange = await stream_of(addresses.http, max_tokens=20)
            exchange.writer.transport.abort()
            await worker.cancelled.wait()
            await until(lambda: router.service.snapshot_of(MODEL).num_requests == 0)

    run(main, deadline_s=110)


def test_the_limit_of_connections_is_one_for_all_fronts_and_a_dead_front_gives_its_back() -> None:
    async def main() -> None:
        async with routing(max_connections=NUM_CLIENTS) as (router, addresses, worker):
            worker.may_go_on.clear()
            exchanges = [await stream_of(addresses.http, max_tokens=3) for _ in range(NUM_CLIENTS)]
            pool = fronts_of(router)
            for _ in range(NUM_CLIENTS):  # whichever front they come to
                status, answer = await ask(addresses.http, "POST", "/v1/completions", completion(max_tokens=1))
                assert status == 503
                assert orjson.loads(answer)["error"]["code"] == "too_many_connections"
            await until(lambda: pool.num_connections == NUM_CLIENTS)
            victim = max(pool._fronts, key=lambda front: front.link.num_running)
            os.kill(victim.process.pid, signal.SIGKILL)
            await until(lambda: len(pool.pids) == NUM_FRONTS and victim.process.pid not in pool.pids)
            await asyncio.gather(*(front.listens for front in pool._fronts))
            worker.may_go_on.set()
            status, _ = await ask(addresses.http, "POST", "/v1/completions", completion(max_tokens=1))
            assert status == 200
            for exchange in exchanges:
                exchange.writer.close()

    run(main, deadline_s=110)


def test_fronts_hear_at_once_that_the_longest_sequence_has_changed() -> None:
    async def main() -> None:
        async with routing() as (router, _, worker):
            pool = fronts_of(router)
            assert pool._setup.models[MODEL].max_model_len == 1000
            worker.leave()  # no worker joins after it
            await until(lambda: pool._setup.models[MODEL].max_model_len is None)

    run(main, deadline_s=110)


def test_a_large_body_for_what_the_dispatcher_answers_is_refused_by_the_front() -> None:
    async def main() -> None:
        async with routing(max_body_mib=80) as (_, addresses, _):
            exchange = await Exchange.begin(addresses.http, "POST", "/v1/models", {"x": "y" * (66 << 20)})
            status, answer = await exchange.end()
            assert status == 413
            assert orjson.loads(answer)["error"]["code"] == "body_too_large"
            assert (await ask(addresses.http, "POST", "/v1/models", {"x": "y"}))[0] == 405

    run(main, deadline_s=110)


def test_lines_of_fronts_look_like_those_of_the_process_that_they_belong_to() -> None:
    root = logging.getLogger()
    handler, level = logging.StreamHandler(), root.level
    handler.setFormatter(logging.Formatter("%(asctime)s router %(levelname)s %(message)s", "%H"))
    others, root.handlers = root.handlers, [handler]
    try:
        root.setLevel(logging.WARNING)
        style = pickle.loads(pickle.dumps(LogStyle.of_this_process()))
        front = logging.StreamHandler()
        root.handlers = [front]
        root.setLevel(logging.INFO)
        style.adopt()
        assert root.level == logging.WARNING
        line = front.format(logging.LogRecord("x", logging.INFO, "", 1, "hello", (), None))
        assert re.fullmatch(r"\d\d router INFO hello", line)
    finally:
        root.handlers = others
        root.setLevel(level)


def put_key(folder: Path, **limits: int) -> None:
    """The only key is sk-k."""
    key = {"name": "k", "sha256": digest_of(b"sk-k").hex(), **limits}
    (folder / "new").write_text(yaml.safe_dump({"keys": [key]}))
    (folder / "new").replace(folder / "keys.yaml")


async def ask_with_key(at: Endpoint, path: str, body: object) -> tuple[int, bytes]:
    exchange = Exchange(*await asyncio.open_connection(at.host, at.port))
    data = orjson.dumps(body) if body is not None else b""
    head = (
        f"{'POST' if data else 'GET'} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nAuthorization: Bearer sk-k\r\n"
    )
    exchange.writer.write(head.encode() + b"Content-Length: %d\r\n\r\n" % len(data) + data)
    return await exchange.end()


def test_a_changed_key_file_holds_in_the_fronts_and_at_their_dispatcher(tmp_path: Path) -> None:
    (tmp_path / "keys.yaml").write_text("keys: []")

    async def main() -> None:
        async with routing(AccessConfig(str(tmp_path / "keys.yaml"))) as (_, addresses, _):
            body = completion(max_tokens=1, ignore_eos=True)

            async def until_all(status: int) -> None:
                answers: set[int] = set()
                async with asyncio.timeout(30):
                    while answers != {status}:
                        answers = {
                            (await ask_with_key(addresses.http, "/v1/completions", body))[0] for _ in range(NUM_CLIENTS)
                        }

            await until_all(401)
            put_key(tmp_path)
            await until_all(200)
            put_key(tmp_path, requests_per_minute=1)
            await until_all(429)

    run(main, deadline_s=110)


def test_limits_of_a_key_are_counted_once_over_all_fronts(tmp_path: Path) -> None:
    put_key(tmp_path, requests_per_minute=3)

    async def main() -> None:
        async with routing(AccessConfig(str(tmp_path / "keys.yaml"))) as (_, addresses, _):
            assert (await ask(addresses.http, "POST", "/v1/completions", completion(max_tokens=1)))[0] == 401
            body = completion(max_tokens=1, ignore_eos=True)
            statuses = Counter(
                [(await ask_with_key(addresses.http, "/v1/completions", body))[0] for _ in range(NUM_CLIENTS)]
            )
            assert statuses == {200: 3, 429: NUM_CLIENTS - 3}
            reply: list[dict[str, int]] = []
            async with asyncio.timeout(30):
                while sum(one["num_requests"] for one in reply) < 3:  # fronts tell it after they have answered
                    reply = orjson.loads((await ask_with_key(addresses.http, "/v1/usage", None))[1])["data"]
            assert (reply[0]["num_requests"], reply[0]["completion_tokens"]) == (3, 3)

    run(main, deadline_s=110)


def test_a_port_that_somebody_shares_among_fronts_is_in_use() -> None:
    async def main() -> None:
        async with routing() as (_, addresses, _):
            config = RouterConfig(http=HttpConfig(port=addresses.http.port), frontends=NUM_FRONTS)
            with pytest.raises(OSError, match="the port is in use"):
                await Router(config, [ModelSource(MODEL, MODEL_DIR)], TOKEN).start()

    run(main, deadline_s=110)


def test_the_number_of_fronts_is_checked() -> None:
    with pytest.raises(ValueError, match="frontends must be 1 to 64, got 0"):
        RouterConfig(frontends=0)


def test_a_request_travels_whole() -> None:
    assert {"number", *GenerateRequest._fields} == {field.name for field in fields(Submit)}
    request = GenerateRequest("r", pack_ids([1, 2]), SamplingParams(3), priority=2, names=("a",), session="s", choice=1)
    assert Submit.of(request, 7).request() == request


def test_counts_of_fronts_add_up_whatever_dies() -> None:
    sums, unauthenticated = FrontMetrics(["a", "b"]), Counter[str]()
    first, second = FrontMetrics(["a", "b"]), FrontMetrics(["a", "b"])
    tallies = [FrontTally(sums, unauthenticated) for _ in range(2)]
    first.of("a").latencies.of("v1").whole_s.observe(0.2, 2)
    first.of("b").ends["stop"] += 1
    first.ignored_fields.add("7", 2)
    first.responses[200] += 2
    tallies[0].add(counts_of(first, {"missing": 1}, None))
    second.of("a").latencies.of("v2").whole_s.observe(0.2)
    second.ignored_fields.add("7")
    second.responses[200] += 1
    second.of("a").num_output_tokens = 4
    tallies[1].add(counts_of(second, {}, None))
    first.of("a").latencies.of("v1").whole_s.observe(70.0)
    first.of("b").ends["stop"] += 1
    first.ignored_fields.add("id")
    first.responses[503] += 1
    tallies[0].add(counts_of(first, {"missing": 3}, None))
    FrontTally(sums, unauthenticated).add(counts_of(second, {}, None))  # one that was started anew counts from zero
    assert sums.responses == {200: 4, 503: 1}
    assert (sums.of("a").num_output_tokens, sums.of("b").num_output_tokens) == (8, 0)
    assert (sums.of("a").ends, sums.of("b").ends) == ({}, {"stop": 2})
    whole_s = {version: latencies.whole_s for version, latencies in sums.of("a").latencies.items()}
    assert {version: histogram.count for version, histogram in whole_s.items()} == {"": 0, "v1": 3, "v2": 2}
    assert whole_s["v1"].total == pytest.approx(0.4 + 70.0)
    assert sums.ignored_fields == {"7": 4, "id": 1}
    assert unauthenticated == {"missing": 3}


def test_what_a_front_still_reports_of_a_removed_model_counts_for_none() -> None:
    sums, front = FrontMetrics(["a"]), FrontMetrics(["a", "gone"])
    front.of("gone").num_output_tokens = 3
    front.of("a").num_output_tokens = 4
    FrontTally(sums, Counter()).add(counts_of(front, {}, None))
    assert sums.models.keys() == {"a"}
    assert sums.of("a").num_output_tokens == 4
    sums.of("gone").num_output_tokens += 1
    assert sums.models.keys() == {"a"}


def test_what_became_of_the_traces_of_fronts_adds_up() -> None:
    sums = TraceCounts()
    tallies = [FrontTally(FrontMetrics(), Counter(), sums) for _ in range(2)]
    tallies[0].add(counts_of(FrontMetrics(), {}, TraceCounts(num_exported=3)))
    tallies[0].add(counts_of(FrontMetrics(), {}, TraceCounts(num_exported=5, num_dropped=1)))
    tallies[1].add(counts_of(FrontMetrics(), {}, TraceCounts(num_failed=2, num_exported=1)))
    assert sums == TraceCounts(num_exported=6, num_dropped=1, num_failed=2)
