"""Beam search through the API: what each step asks of the cluster, and what the client gets."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import orjson
import pytest

from slipstream.router.beam_search.beam_search import BeamSearch, BeamSettings
from slipstream.router.protocol.generation import GenerateRequest, GenerationError
from slipstream.router.protocol.messages import TokenLogprob, unpack_ids
from slipstream.router.registry.worker_abilities import WorkerAbilities
from tests.support.router.fake_cluster import END, MODEL, FrontUnderTest, Script, front, run

COMPLETIONS = "/v1/completions"
PROMPT = [40, 41]
NUM_TOKENS = 60  # that a made-up model knows, END among them


def ranked(tokens: list[int], number: int) -> list[tuple[int, float]]:
    """The best next tokens of a model that is a hash of the last two."""
    scores = np.random.default_rng(tokens[-2:]).normal(size=NUM_TOKENS) * 2
    logprobs = (scores - np.log(np.exp(scores).sum())).astype(np.float32)
    best = np.argsort(-logprobs)[:number]
    return [(int(token_id), float(logprobs[token_id])) for token_id in best]


def serve_beams(site: FrontUnderTest) -> None:
    """Has the cluster answer as that model."""

    def next_of(request: GenerateRequest) -> list[tuple[int, float]]:
        assert isinstance(request.prompt_ids, bytes)
        return ranked(unpack_ids(request.prompt_ids), request.sampling.logprobs or 0)

    service: Any = site.service
    service.abilities = WorkerAbilities(True, (END,), ())
    service.script = lambda request: Script([next_of(request)[0][0]])
    service._logprobs = lambda request, _: (TokenLogprob(next_of(request)[0][1], tuple(next_of(request))),)


def expected(num_beams: int, max_tokens: int, ends: tuple[int, ...] = (END,), **settings: Any) -> BeamSearch:
    search = BeamSearch(BeamSettings(num_beams, max_tokens, **settings), ends)
    while not search.is_over:
        paths = [[beam.token_id for beam in last.path()] if last else [] for last in search.beams]
        following = [ranked(PROMPT + path, search.num_candidates) for path in paths]
        search.advance([[(token_id, TokenLogprob(value)) for token_id, value in best] for best in following])
    return search


async def ask(site: FrontUnderTest, **fields: Any) -> dict[str, Any]:
    status, _, answer = await site.post(COMPLETIONS, prompt=PROMPT, use_beam_search=True, **fields)
    assert status == 200, answer
    answered: dict[str, Any] = orjson.loads(answer)
    return answered


async def num_errors(site: FrontUnderTest) -> int:
    _, _, account = await site.request("GET", "/v1/usage")
    [used] = orjson.loads(account)["data"]
    return int(used["num_errors"])


def text_of(site: FrontUnderTest, token_ids: list[int]) -> str:
    return site.tokenizer._tokenizer.decode(token_ids)


@pytest.mark.parametrize(
    ("fields", "settings"),
    [
        ({"n": 4}, {}),
        ({"n": 4, "length_penalty": 2.0, "early_stopping": True}, {"length_penalty": 2.0, "early_stopping": True}),
        ({"n": 2, "best_of": 4, "early_stopping": "never"}, {"early_stopping": "never"}),
        ({"n": 4, "ignore_eos": True}, {"ends": ()}),
        ({"n": 4, "stop_token_ids": [7, 20]}, {"ends": (END, 7, 20)}),
        ({"n": 4, "stop_token_ids": [7, 20], "ignore_eos": True}, {"ends": (7, 20)}),
    ],
)
def test_choices_are_the_hypotheses_best_first(fields: dict[str, Any], settings: dict[str, Any]) -> None:
    async def main() -> None:
        async with front("x") as site:
            serve_beams(site)
            answer = await ask(site, max_tokens=12, **fields)
            search = expected(4, 12, **settings)
            hypotheses = search.hypotheses[: fields["n"]]
            texts = [text_of(site, one.token_ids[: -1 if one.has_end else None]) for one in hypotheses]
            assert [choice["text"] for choice in answer["choices"]] == texts
            assert [choice["index"] for choice in answer["choices"]] == list(range(fields["n"]))
            reasons = ["stop" if one.has_end else "length" for one in hypotheses]
            assert [choice["finish_reason"] for choice in answer["choices"]] == reasons
            requests = site.service.requests
            assert len({request.request_id for request in requests}) == len(requests) == 1 + 4 * (search.num_tokens - 1)
            assert {request.session for request in requests} == {f"{answer['id']}#0"}
            assert {request.sampling.max_tokens for request in requests} == {1}
            gone = [request.replaces for request in requests if request.replaces]
            assert len(set(gone)) == len(gone) == len(requests) - 1 - 4, (
                "the first and the latest of each beam are shown"
            )
            assert {request.request_id for request in requests}.issuperset(gone)
            _, _, account = await site.request("GET", "/v1/usage")
            [used] = orjson.loads(account)["data"]
            assert (used["num_requests"], used["completion_tokens"]) == (1, len(requests))
            usage = answer["usage"]
            assert (usage["prompt_tokens"], usage["completion_tokens"]) == (len(PROMPT), len(requests))

    run(main)


def test_log_probabilities_are_those_along_the_path() -> None:
    async def main() -> None:
        async with front("x") as site:
            serve_beams(site)
            answer = await ask(site, n=2, max_tokens=6, logprobs=2)
            best = expected(2, 6).hypotheses[0]
            path = best.beam.path()[: -1 if best.has_end else None]
            shown = answer["choices"][0]["logprobs"]
            assert shown["token_logprobs"] == pytest.approx([beam.logprob.logprob for beam in path])
            assert all(2 <= len(top) <= 3 for top in shown["top_logprobs"])

    run(main)


def test_chat_has_beams_too_and_several_prompts_are_searched_one_by_one() -> None:
    async def main() -> None:
        async with front("x") as site:
            serve_beams(site)
            chat = {"messages": [{"role": "user", "content": "hi"}], "n": 2, "max_tokens": 4}
            status, _, answer = await site.post("/v1/chat/completions", use_beam_search=True, **chat)
            assert status == 200, answer
            assert len(orjson.loads(answer)["choices"]) == 2
            both = {"prompt": [PROMPT, [50, 51]], "n": 1, "best_of": 3, "max_tokens": 5}
            status, _, answer = await site.post(COMPLETIONS, use_beam_search=True, **both)
            first, second = orjson.loads(answer)["choices"]
            best = expected(3, 5).hypotheses[0]
            assert first["text"] == text_of(site, best.token_ids[: -1 if best.has_end else None])
            assert (first["index"], second["index"]) == (0, 1)

    run(main)


def test_a_search_is_refused_where_its_ends_are_not_known() -> None:
    async def main() -> None:
        async with front("x") as site:
            serve_beams(site)
            service: Any = site.service
            service.abilities = WorkerAbilities(True, says_ends=False)
            fields = {"prompt": PROMPT, "use_beam_search": True, "n": 2, "max_tokens": 4}
            status, _, answer = await site.post(COMPLETIONS, **fields)
            assert (status, orjson.loads(answer)["error"]["param"]) == (400, "use_beam_search")
            status, _, answer = await site.post(COMPLETIONS, **fields, ignore_eos=True)
            assert status == 200, answer

    run(main)


def test_a_step_that_fails_fails_the_answer_and_leaves_nothing_running() -> None:
    async def main() -> None:
        async with front("x") as site:
            serve_beams(site)
            good = site.service.script
            error = GenerationError("worker_failed", "all workers died")

            def script(request: GenerateRequest) -> Script:
                is_third_step = len(unpack_ids(bytes(request.prompt_ids))) == len(PROMPT) + 2
                return Script([5], error=error) if is_third_step else good(request)

            site.service.script = script
            status, _, answer = await site.post(COMPLETIONS, prompt=PROMPT, use_beam_search=True, n=4, max_tokens=9)
            assert (status, orjson.loads(answer)["error"]["code"]) == (500, "worker_failed")
            assert await num_errors(site) == 1

    run(main)


def test_a_client_that_leaves_cancels_the_beams_that_run() -> None:
    async def main() -> None:
        async with front("x") as site:
            serve_beams(site)
            good = site.service.script

            def script(request: GenerateRequest) -> Script:
                is_first = request.prompt_ids == b"" or len(bytes(request.prompt_ids)) == 4 * len(PROMPT)
                return good(request) if is_first else Script([5], hold_at=0)

            site.service.script = script
            body = orjson.dumps({"model": MODEL, "prompt": PROMPT, "use_beam_search": True, "n": 4, "max_tokens": 9})
            _, writer = await asyncio.open_connection("127.0.0.1", site.port)
            writer.write(
                b"POST %b HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % (COMPLETIONS.encode(), len(body))
            )
            writer.write(body)
            while len(site.service.requests) < 5:
                await site.service.submitted.wait()
                site.service.submitted.clear()
            writer.close()
            for request in site.service.requests[1:]:
                await site.service.cancelled.setdefault(request.request_id, asyncio.Event()).wait()
            assert len(site.service.requests) == 5
            assert await num_errors(site) == 0

    run(main)
