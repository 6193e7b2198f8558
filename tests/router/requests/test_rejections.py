"""Refused requests can be explained, by their own tenant, and cost those that are served nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest
import yaml

from slipstream.router.access.api_key import digest_of
from slipstream.router.config.access_config import AccessConfig
from slipstream.router.observability.explain.explain import explanation
from slipstream.router.observability.explain.explain_table import listing, table
from slipstream.router.process.addresses import Endpoint
from slipstream.router.protocol.generation import AdmissionError, Figure, GenerationError, Slo
from slipstream.router.requests.history import History, RequestRecord, Timeline
from slipstream.router.requests.rejections import RejectedRequest, Rejections
from tests.router.dispatch.test_admission import busy_lab
from tests.router.test_http_router import CONFIG, Exchange, PlayedWorker, completion
from tests.support.router.dispatcher_lab import CONFIG as LAB_CONFIG
from tests.support.router.dispatcher_lab import Lab
from tests.support.router.fake_cluster import run
from tests.support.router.routing import routing

FULL = GenerationError("queue_full", "3 requests are waiting already", 2.5, (Figure("num_waiting", 3),))
NUM_SLOTS = 8  # of a played worker


def refused(request_id: str, *names: str, tenant: str = "", at_s: float = 1.0) -> RejectedRequest:
    return RejectedRequest(at_s, request_id, names, tenant, 0, 5, 10, None, Slo(), "", None, "", "", FULL)


def test_of_many_the_latest_are_kept_and_the_names_of_the_others_are_gone() -> None:
    rejections = Rejections(3)
    for number in range(10):
        rejections.add(refused(f"r{number}", "shared", f"x{number}"))
    assert [one.request_id for one in rejections.latest()] == ["r9", "r8", "r7"]
    assert rejections.get("r6") is rejections.get("x6") is None
    assert rejections.get("shared") is rejections.get("r9") is rejections.get("x9")
    assert len(rejections) == 3
    assert set(rejections._by_name) == {"shared", "x7", "x8", "x9"}


def test_the_flood_of_one_tenant_leaves_the_refusals_of_the_others() -> None:
    rejections = Rejections(8)
    for number in range(3):
        rejections.add(refused(f"quiet{number}", tenant="quiet"))
    for number in range(100):
        rejections.add(refused(f"loud{number}", tenant="loud"))
    kept = [one.request_id for one in rejections.latest()]
    assert kept == ["loud99", "loud98", "loud97", "loud96", "quiet2", "quiet1", "quiet0"]
    for number in range(100):
        rejections.add(refused(f"t{number}", tenant=f"t{number}"))
    assert len(rejections) == 8
    assert set(rejections._ids_of) == {f"t{number}" for number in range(92, 100)}


def test_an_id_that_is_refused_again_is_kept_once() -> None:
    rejections = Rejections(3)
    for at_s in (1.0, 2.0):
        rejections.add(refused("a", "name", at_s=at_s))
        rejections.add(refused("b"))
    assert [one.request_id for one in rejections.latest()] == ["b", "a"]
    named = rejections.get("name")
    assert named is not None
    assert named.at_s == 2.0


def test_a_flood_of_refusals_pushes_no_served_request_out_of_the_history() -> None:
    history = History(4)
    for number in range(4):
        history.add(RequestRecord(f"served{number}", "", 0, 1, Timeline(float(number))))
    for number in range(1000):
        history.refuse(refused(f"r{number}", at_s=10.0 + number))
    assert all(history.get(f"served{number}") is not None for number in range(4))
    assert [record.request_id for record in history.latest()][:5] == ["r999", "r998", "r997", "r996", "served3"]
    history.add(RequestRecord("served4", "", 0, 1, Timeline(2000.0)))
    assert next(iter(history.latest())).request_id == "served4"


@pytest.mark.parametrize("is_refused_last", [True, False])
def test_of_a_retry_with_the_same_name_the_latest_try_is_found(is_refused_last: bool) -> None:
    history = History(4)
    history.add(RequestRecord("served", "", 0, 1, Timeline(5.0), names=("mine",)))
    history.refuse(refused("refused", "mine", at_s=6.0 if is_refused_last else 4.0))
    found = history.get("mine")
    assert found is not None
    assert found.request_id == ("refused" if is_refused_last else "served")


def test_a_refusal_does_not_hide_the_running_request_whose_id_it_wanted() -> None:
    lab = Lab()
    lab.submit("a")
    with pytest.raises(AdmissionError, match="in use"):
        lab.submit("a")
    assert lab.dispatcher.history.get("a").phase == "queued"


def told_of(lab: Any, request_id: str) -> dict[str, Any]:
    return explanation(lab.dispatcher.history.get(request_id), 0.0)


def test_a_full_queue_is_told_with_its_length_and_bound() -> None:
    lab = Lab()
    for number in range(3):
        lab.submit(f"r{number}")
    lab.now = 7.0
    with pytest.raises(AdmissionError):
        lab.submit("late", names=("mine",), tenant="", timeout_s=30.0, session="s")
    described = told_of(lab, "mine")
    assert orjson.loads(orjson.dumps(described)) == described | {"names": ["mine"]}
    assert (described["phase"], described["outcome"], described["num_attempts"], described["decode"]) == (
        "refused",
        "queue_full",
        0,
        None,
    )
    assert described["why"] == "queue_full: 3 requests are waiting already; at most 3 may"
    error = described["finish"]["error"]
    assert error["figures"] == {"num_waiting": 3, "max_waiting": 3}
    assert error["retry_after_s"] > 0
    assert (described["timeline"]["queued"], described["timeline"]["finished"], described["queue_s"]) == (None, 0, None)
    assert described["queued_at"] == "1970-01-01T00:00:07.000+00:00"
    assert (described["num_prompt_tokens"], described["max_output_tokens"], described["timeout_s"]) == (5, 10, 30)
    assert (described["attempts"], described["decisions"]) == ([], [])


def test_a_tenants_full_share_is_told_with_the_share() -> None:
    lab = Lab(replace(LAB_CONFIG, max_queued_per_tenant=2))
    for number in range(2):
        lab.submit(f"r{number}", tenant="acme")
    with pytest.raises(AdmissionError):
        lab.submit("late", tenant="acme")
    described = told_of(lab, "late")
    assert described["outcome"] == "tenant_queue_full"
    assert described["finish"]["error"]["figures"] == {"num_waiting_of_tenant": 2, "max_waiting_of_tenant": 2}


def test_a_deadline_out_of_reach_is_told_with_the_predicted_wait() -> None:
    lab = busy_lab(100)
    with pytest.raises(AdmissionError):
        lab.submit("hopeless", timeout_s=20.0)
    described = told_of(lab, "hopeless")
    figures = described["finish"]["error"]["figures"]
    assert (described["outcome"], figures["num_waiting_before"], figures["deadline_s"]) == (
        "deadline_unreachable",
        100,
        20,
    )
    assert figures["predicted_wait_s"] == pytest.approx(100, rel=0.1)
    assert figures["least_wait_s"] == pytest.approx(figures["predicted_wait_s"] / 2)


def test_a_queue_timeout_is_told_with_the_queue_at_that_moment() -> None:
    lab = Lab()
    lab.submit("a")
    lab.submit("b")
    lab.tick(LAB_CONFIG.queue_timeout_s)
    described = told_of(lab, "a")
    assert (described["phase"], described["outcome"]) == ("finished", "queue_timeout")
    assert described["finish"]["error"]["figures"] == {"num_waiting": 2, "deadline_s": LAB_CONFIG.queue_timeout_s}
    assert "num_waiting" in table(described)


def test_the_refusal_of_one_choice_is_found_by_the_names_of_the_whole_answer() -> None:
    lab = Lab()
    lab.submit("r0")
    lab.submit("r1")
    lab.submit("a#0", names=("x#0", "a", "x"))
    with pytest.raises(AdmissionError):
        lab.submit("a#1", names=("x#1",), choice=1, first_choice="a#0")
    for name in ("a", "x", "a#1", "x#1"):
        assert told_of(lab, name)["request_id"] == "a#1"
    for name in ("a#0", "x#0"):
        assert told_of(lab, name)["request_id"] == "a#0"


def test_the_table_says_why_and_shows_the_numbers_instead_of_predictions() -> None:
    history = History(4)
    history.refuse(refused("r", "mine", tenant="acme"))
    record = history.get("r")
    assert record is not None
    described = explanation(record, 0.0)
    assert table(described).splitlines() == [
        "request r  (mine)",
        "  came 1970-01-01 00:00:01.000+00:00, priority 0, tenant acme",
        "  refused: queue_full",
        "  3 requests are waiting already",
        "",
        "  DECIDED BY",
        "  num_waiting    3",
        "  retry_after_s  2.5",
    ]
    assert "queue_full" in listing([described])


async def call(
    at: Endpoint, path: str, body: object = None, **headers: str
) -> tuple[int, dict[str, str], dict[str, Any]]:
    exchange = Exchange(*await asyncio.open_connection(at.host, at.port))
    data = b"" if body is None else orjson.dumps(body)
    lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
    head = f"{'POST' if data else 'GET'} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{lines}"
    exchange.writer.write(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data)
    answer = await exchange.reader.read()
    exchange.writer.close()
    head_bytes, _, rest = answer.partition(b"\r\n\r\n")
    first, *others = head_bytes.decode().split("\r\n")
    got = dict(line.lower().split(": ", 1) for line in others)
    return int(first.split()[1]), got, orjson.loads(rest)


async def explained(at: Endpoint, request_id: str, **headers: str) -> dict[str, Any]:
    """With several fronts, the answer to a refused client may be faster than the word of it to the dispatcher."""
    async with asyncio.timeout(30):
        while True:
            status, _, described = await call(at, f"/v1/requests/{request_id}/explain", **headers)
            if status == 200:
                return described
            await asyncio.sleep(0.01)


def with_router(num_fronts: int, scenario: Callable[[Endpoint, PlayedWorker], Any], access: AccessConfig) -> None:
    async def main() -> None:
        dispatch = replace(CONFIG.dispatch, max_queued_requests=1)
        async with routing(access, fronts=num_fronts, dispatch=dispatch) as (_, addresses, worker):
            await scenario(addresses.http, worker)

    run(main, deadline_s=110)


@pytest.mark.parametrize("num_fronts", [1, 2])
def test_the_id_in_the_header_of_a_503_tells_why(num_fronts: int) -> None:
    async def scenario(at: Endpoint, worker: PlayedWorker) -> None:
        worker.may_go_on.clear()
        body = completion(max_tokens=3, ignore_eos=True)
        waiting = {asyncio.create_task(call(at, "/v1/completions", body)) for _ in range(NUM_SLOTS + 2)}
        [turned_away], waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        status, headers, answer = turned_away.result()
        assert (status, answer["error"]["code"]) == (503, "overloaded")
        described = await explained(at, headers["x-request-id"])
        assert (described["phase"], described["outcome"]) == ("refused", "queue_full")
        assert described["finish"]["error"]["figures"] == {"num_waiting": 1, "max_waiting": 1}
        assert described["request_id"].startswith("cmpl-")
        _, _, listed = await call(at, "/v1/requests?outcome=refused")
        assert [one["request_id"] for one in listed["data"]] == [described["request_id"]]
        worker.may_go_on.set()
        assert {(await one)[0] for one in waiting} == {200}

    with_router(num_fronts, scenario, AccessConfig())


@pytest.mark.parametrize("num_fronts", [1, 2])
def test_who_exceeds_the_limits_of_a_key_can_ask_why_with_that_key_only(num_fronts: int, tmp_path: Path) -> None:
    fields = {"acme": {"requests_per_minute": 1}, "other": {}, "root": {"admin": True}}
    keys = [{"name": name, "sha256": digest_of(name.encode()).hex(), **more} for name, more in fields.items()]
    (tmp_path / "keys.yaml").write_text(yaml.safe_dump({"keys": keys}))

    async def scenario(at: Endpoint, worker: PlayedWorker) -> None:
        body = completion(max_tokens=1, ignore_eos=True)
        statuses = []
        for request_id in ("first", "second"):
            status, headers, answer = await call(
                at, "/v1/completions", body, authorization="Bearer acme", x_request_id=request_id
            )
            statuses.append(status)
        assert statuses == [200, 429]
        assert headers["x-request-id"] == "second"
        described = await explained(at, "second", authorization="Bearer acme")
        assert (described["phase"], described["outcome"], described["tenant"]) == ("refused", "limit_exceeded", "acme")
        error = described["finish"]["error"]
        assert "1 requests a minute" in error["message"]
        assert error["message"] in answer["error"]["message"]
        assert error["figures"]["requests_per_minute"] == 1
        assert 0 <= error["figures"]["requests_left"] < 1
        assert 0 < error["retry_after_s"] <= 60
        assert (described["num_prompt_tokens"], described["max_output_tokens"]) == (5, 1)
        assert (await explained(at, "second", authorization="Bearer root"))["request_id"] == described["request_id"]
        assert (await explained(at, "first", authorization="Bearer acme"))["outcome"] == "length"
        for path in ("/v1/requests/second/explain", f"/v1/requests/{described['request_id']}/explain"):
            assert (await call(at, path, authorization="Bearer other"))[0] == 404
        assert (await call(at, "/v1/requests", authorization="Bearer other"))[2]["data"] == []

    with_router(num_fronts, scenario, AccessConfig(str(tmp_path / "keys.yaml")))


@pytest.mark.parametrize("num_fronts", [1, 2])
def test_a_prompt_that_nothing_can_ever_run_is_told_with_the_longest_sequence(num_fronts: int) -> None:
    async def scenario(at: Endpoint, worker: PlayedWorker) -> None:
        status, headers, _ = await call(at, "/v1/completions", completion(1200, max_tokens=7))
        assert status == 400
        described = await explained(at, headers["x-request-id"])
        assert (described["phase"], described["outcome"]) == ("refused", "prompt_too_long")
        figures = {"num_prompt_tokens": 1200, "num_wanted_tokens": 7, "max_model_len": 1000}
        assert described["finish"]["error"]["figures"] == figures

    with_router(num_fronts, scenario, AccessConfig())
