"""Explanations: made from a record alone, whole for every way a request can go, and readable."""

from __future__ import annotations

import orjson
import pytest
from openai import BadRequestError

from slipstream.kv_transfer.api.ticket import PeerId
from slipstream.router.observability.explain.explain import explanation, summary
from slipstream.router.observability.explain.explain_table import listing, number, table
from slipstream.router.protocol.generation import GenerationError, GenerationFinish, Levels, Slo, Usage
from slipstream.router.requests.history import (
    MAX_EVENTS,
    MAX_FULL_DECISIONS,
    PagesLanded,
    RequestRecord,
    Timeline,
)
from slipstream.router.requests.placement_decision import MAX_CANDIDATES, Candidate, Decision, Term
from slipstream.router.requests.stages import attempts_of
from tests.support.router.fake_cluster import MODEL, front, openai_client, run

PREFILLS = [PeerId(f"prefill-{number}", 7) for number in range(2)]
DECODES = [PeerId(f"decode-{number}", 7) for number in range(2)]


def decision(prefill: PeerId | None = PREFILLS[0], num_candidates: int = 4) -> Decision:
    """`prefill` -> decode-0, with what a policy that predicts would say."""
    ways = [(prefill, DECODES[0]), (None, DECODES[0]), (None, DECODES[1]), (PREFILLS[1], DECODES[1])]
    ways += [(PeerId(f"prefill-{number}", 1), DECODES[1]) for number in range(2, num_candidates)]
    return Decision(
        decode=DECODES[0],
        prefill=prefill,
        reason="long_prompt" if prefill else "short_prompt",
        why="remote on prefill-0 -> decode-0: long_prompt; it is faster",
        candidates=tuple(
            Candidate(
                decode=decode,
                prefill=group,
                cost=0.1 + number,
                fits=number != 2,
                terms=(Term("prefill", 0.08 + number), Term("transfer", 0.02)),
                num_cached_tokens=16,
                excluded="failed this request before" if number == 3 else "",
            )
            for number, (group, decode) in enumerate(ways[:num_candidates])
        ),
        policy="slo",
        margin=1.0,
        predicted_ttft_s=0.1,
        predicted_itl_s=0.004,
        predicted_output_tokens=20,
    )


def new_record() -> RequestRecord:
    record = RequestRecord(
        "cmpl-1",
        "acme",
        0,
        90,
        Timeline(100.0),
        names=("mine",),
        slo=Slo(0.2, None),
        levels=Levels(0.2, 0.05),
        max_output_tokens=11,
    )
    record.note("queued", 100.0, 0)
    return record


def remote_record() -> RequestRecord:
    record = new_record()
    record.note("placed", 100.01, 0, decision=decision())
    record.note("reserved", 100.02, 0, "16 tokens cached")
    record.note("prefill", 100.02, 0, "on prefill-0")
    record.note("first_token", 100.12, 0)
    record.num_cached_tokens = 32
    record.note("transfer", 100.12, 0)
    record.landed = PagesLanded(100.125, 0, 2**20, 0.05)
    record.note("decode", 100.125, 0)
    record.note("finished", 100.62, 0, "length")
    record.end(GenerationFinish("length", Usage(90, 11, 32)))
    return record


def spans_of(record: RequestRecord) -> list[tuple[int, str, float, float | None, str]]:
    return [
        (
            attempt.number,
            stage.name,
            round(stage.begin_s - 100, 3),
            stage.end_s and round(stage.end_s - 100, 3),
            stage.where,
        )
        for attempt in attempts_of(record)
        for stage in attempt.stages
    ]


def test_the_stages_of_a_remote_prefill_follow_each_other_without_a_gap() -> None:
    assert spans_of(remote_record()) == [
        (0, "queued", 0.0, 0.01, ""),
        (0, "reserve", 0.01, 0.02, "decode-0"),
        (0, "prefill", 0.02, 0.12, "prefill-0"),
        (0, "transfer", 0.12, 0.125, "prefill-0 -> decode-0"),
        (0, "decode", 0.125, 0.62, "decode-0"),
    ]


def test_local_prefill_reserves_nothing() -> None:
    record = new_record()
    record.note("placed", 100.01, 0, decision=decision(None))
    record.note("prefill", 100.01, 0)
    assert spans_of(record) == [(0, "queued", 0.0, 0.01, ""), (0, "prefill", 0.01, None, "decode-0")]


def test_a_failed_attempt_says_why_and_the_next_one_begins_with_the_queue() -> None:
    record = new_record()
    record.note("placed", 100.01, 0, decision=decision())
    record.note("queued", 100.05, 1, "decode-0 is lost: connection lost")
    record.note("placed", 100.06, 1, decision=decision(None))
    record.note("prefill", 100.06, 1)
    record.note("finished", 100.07, 1, "worker_failed: no more")
    record.end(GenerationFinish("error", Usage(90, 0, 0), error=GenerationError("worker_failed", "no more")))
    assert spans_of(record) == [
        (0, "queued", 0.0, 0.01, ""),
        (0, "reserve", 0.01, 0.05, "decode-0"),
        (1, "queued", 0.05, 0.06, ""),
        (1, "prefill", 0.06, 0.07, "decode-0"),
    ]
    first, second = attempts_of(record)
    assert first.failure == "decode-0 is lost: connection lost"
    assert second.failure == "worker_failed: no more"
    described = explanation(record, 0.0)
    assert described["outcome"] == "worker_failed"
    text = table(described)
    assert "decode-0 is lost" in text
    assert "no more" in text


def test_what_was_foreseen_stands_beside_what_came_out() -> None:
    described = explanation(remote_record(), unix_offset_s=1000.0)
    assert orjson.loads(orjson.dumps(described)) is not None
    assert described["predictions"] == {
        "ttft_s": {"predicted": 0.11, "measured": 0.12},
        "itl_s": {"predicted": 0.004, "measured": (100.62 - 100.12) / 10},
        "output_tokens": {"predicted": 20, "measured": 11},
        "cached_tokens": {"predicted": 16, "measured": 32},
    }
    assert described["queued_at"] == "1970-01-01T00:18:20.000+00:00"
    assert described["timeline"]["transfer"] == 0.12
    assert described["transfer"] == {"attempt": 0, "at_s": 0.125, "num_bytes": 2**20, "seconds": 0.05}
    [decided] = described["decisions"]
    assert (decided["attempt"], decided["at_s"], decided["margin"]) == (0, 0.01, 1.0)
    assert [candidate["chosen"] for candidate in decided["candidates"]] == [True, False, False, False]
    assert decided["candidates"][1]["terms"] == {"prefill": 1.08, "transfer": 0.02}
    assert decided["candidates"][3]["excluded"] == "failed this request before"


def test_levels_are_the_requests_own_or_those_of_the_cluster() -> None:
    lines = table(explanation(remote_record(), 0.0)).splitlines()
    shown = {
        line.split()[0]: line.split("  ")[-1].strip() for line in lines if line.strip().startswith(("TTFT ", "ITL "))
    }
    assert shown == {"TTFT": "200.00 ms", "ITL": "50.00 ms by default"}


def test_the_table_shows_every_candidate_with_its_terms_and_marks_the_chosen() -> None:
    lines = table(explanation(remote_record(), 0.0)).splitlines()
    head = next(number for number, line in enumerate(lines) if line.startswith("attempt 0, "))
    assert lines[head].endswith("prefill-0 -> decode-0 by slo: long_prompt, 1 ahead of the next")
    assert lines[head + 1].split() == ["PREFILL", "DECODE", "COST", "prefill", "transfer", "CACHED"]
    assert lines[head + 2].split() == ["*", "prefill-0", "decode-0", "0.1", "0.08", "0.02", "16"]
    assert lines[head + 4].split() == ["local", "decode-1", "2.1", "2.08", "0.02", "16", "no", "room"]
    assert lines[head + 5].endswith("failed this request before")
    [ttft] = [line for line in lines if line.strip().startswith("TTFT")]
    assert ttft.split() == ["TTFT", "110.00", "ms", "120.00", "ms", "200.00", "ms"]


@pytest.mark.parametrize(("value", "shown"), [(None, "-"), (0.0126214, "0.01262"), (8.659e-45, "0"), (-0.25, "-0.25")])
def test_costs_have_four_digits_and_what_is_next_to_nothing_is_zero(value: float | None, shown: str) -> None:
    assert number(value) == shown


def test_a_request_in_the_queue_can_be_explained() -> None:
    described = explanation(new_record(), 0.0)
    assert (described["phase"], described["outcome"], described["decode"], described["total_s"]) == (
        "queued",
        None,
        None,
        None,
    )
    assert described["predictions"]["ttft_s"] == {"predicted": None, "measured": None}
    lines = table(described).splitlines()
    assert "  not placed yet" in lines
    [ttft] = [line for line in lines if line.strip().startswith("TTFT")]
    assert ttft.split() == ["TTFT", "-", "-", "200.00", "ms"]


def test_a_request_that_ended_in_the_queue_is_not_said_to_be_placed_later() -> None:
    record = new_record()
    record.note("finished", 100.05, 0, "abort")
    record.end(GenerationFinish("abort", Usage(90, 0, 0)))
    lines = table(explanation(record, 0.0)).splitlines()
    assert "  never placed" in lines
    assert "  not placed yet" not in lines


def test_a_decision_without_predictions_shows_dashes() -> None:
    record = new_record()
    record.note("placed", 100.0, 0, decision=Decision(DECODES[0], None, "short_prompt", "why", ()))
    lines = table(explanation(record, 0.0)).splitlines()
    assert any(line.split() == ["output", "tokens", "-", "-", "11"] for line in lines)


def test_a_list_tells_where_each_request_is() -> None:
    waiting, done = new_record(), remote_record()
    lines = listing([summary(waiting, 0.0), summary(done, 0.0)]).splitlines()
    assert lines[1].split()[2:6] == ["queued", "-", "-", "0"]
    assert lines[2].split()[2:7] == ["length", "prefill-0", "decode-0", "1", "90/32/11"]
    assert listing([]) == "no requests\n"


def test_a_record_of_many_refusals_stays_small_and_keeps_its_first_and_latest_events() -> None:
    record = new_record()
    for attempt in range(100):
        record.note("placed", 100.0 + attempt, attempt, decision=decision(num_candidates=100))
        record.note("queued", 100.5 + attempt, attempt + 1, f"refused {attempt}")
    assert len(record.events) == MAX_EVENTS
    assert record.num_events_left_out == 201 - MAX_EVENTS
    assert record.events[0].phase == "queued"
    assert record.events[-1].detail == "refused 99"
    sizes = [len(one.candidates) for one in record.decisions]
    assert max(sizes) == MAX_CANDIDATES
    assert sum(size > 1 for size in sizes) == MAX_FULL_DECISIONS
    assert record.decisions[-1].candidates[0].prefill == PREFILLS[0]
    assert all(
        stage.end_s is None or stage.end_s - stage.begin_s <= 0.5 for one in attempts_of(record) for stage in one.stages
    )
    assert "137 events" in table(explanation(record, 0.0))


def test_the_body_field_explains_the_answer_and_the_openai_client_takes_it() -> None:
    async def main() -> None:
        async with front("Hello there") as site, openai_client(site) as client:
            asked = {"model": MODEL, "prompt": "hi", "max_tokens": 3}
            whole = await client.completions.create(**asked, extra_body={"explain": True})
            [described] = whole.model_extra["slipstream"]["explain"]
            assert described["request_id"] == whole.id
            assert described["outcome"] == "length"
            plain = await client.completions.create(**asked)
            assert "slipstream" not in plain.model_extra

            for options in ({}, {"stream_options": {"include_usage": True}}):
                messages = [{"role": "user", "content": "hi"}]
                stream = await client.chat.completions.create(
                    model=MODEL, messages=messages, max_tokens=3, stream=True, extra_body={"explain": True}, **options
                )
                chunks = [chunk async for chunk in stream]
                assert [bool(chunk.model_extra.get("slipstream")) for chunk in chunks] == [False] * (
                    len(chunks) - 1
                ) + [True]
                [described] = chunks[-1].model_extra["slipstream"]["explain"]
                assert described["request_id"] == chunks[-1].id
                assert chunks[-1].choices == []
                assert (chunks[-1].usage is not None) == bool(options)

            two = await client.completions.create(**asked, n=2, extra_body={"explain": True})
            ids = [one["request_id"] for one in two.model_extra["slipstream"]["explain"]]
            assert ids == [f"{two.id}#0", f"{two.id}#1"]
            with pytest.raises(BadRequestError, match="explain"):
                await client.completions.create(**asked, n=17, extra_body={"explain": True})

    run(main)


def test_the_pages_give_json_and_text_and_name_what_is_wrong_with_a_query() -> None:
    async def main() -> None:
        async with front("Hello there") as site:
            for tenant in ("acme", "acme", "other"):
                status, _, body = await site.post("/v1/completions", prompt="hi", max_tokens=2, user=tenant)
                assert status == 200
            last = orjson.loads(body)["id"]
            status, _, body = await site.request("GET", "/v1/requests?limit=2")
            listed = orjson.loads(body)["data"]
            assert listed[0]["request_id"] == last
            assert len(listed) == 2
            status, _, body = await site.request("GET", "/v1/requests?outcome=length&format=text")
            assert body.decode().count("length") == 3
            status, _, body = await site.request("GET", "/v1/requests?outcome=stop")
            assert orjson.loads(body)["data"] == []
            for empty in ("refused", "queue_full", "abort"):
                status, _, body = await site.request("GET", f"/v1/requests?outcome={empty}")
                assert (status, orjson.loads(body)["data"]) == (200, [])

            path = f"/v1/requests/{last}/explain"
            described = orjson.loads((await site.request("GET", path))[2])
            assert described["request_id"] == last
            for query, headers in (("?format=text", {}), ("", {"Accept": "text/plain"})):
                status, got, body = await site.request("GET", path + query, headers=headers)
                assert got["content-type"] == "text/plain; charset=utf-8"
                assert body.decode().startswith(f"request {last}")
            for bad, param in (
                (f"{path}?format=xml", "format"),
                (f"{path}?fromat=text", "fromat"),
                ("/v1/requests?limit=0", "limit"),
                ("/v1/requests?limit=1001", "limit"),
                ("/v1/requests?limit=a", "limit"),
                ("/v1/requests?outcome=foo", "outcome"),
                ("/v1/requests?outcome=", "outcome"),
            ):
                status, _, body = await site.request("GET", bad)
                assert (status, orjson.loads(body)["error"]["param"]) == (400, param)
            status, _, body = await site.request("GET", "/v1/requests/none/explain")
            assert (status, orjson.loads(body)["error"]["code"]) == (404, "request_not_found")

    run(main)
