"""What clients and operators see of the versions of a model, in one process and over fronts."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest
from tokenizers import Tokenizer

from slipstream.router.catalog.served_model import ModelSource
from slipstream.router.process.addresses import Addresses
from slipstream.router.router import Router
from tests.router.test_http_router import CONFIG, TOKEN, Exchange, PlayedWorker, ask, completion, until_ready
from tests.support.router.byte_model import write_byte_model
from tests.support.router.fake_cluster import MODEL, MODEL_DIR, events_of, run


@contextlib.asynccontextmanager
async def routing(
    fronts: int = 1, texts: Sequence[ModelSource] = ()
) -> AsyncIterator[tuple[Router, Addresses, dict[str, PlayedWorker]]]:
    """Ready, with a decode worker of each of two versions."""
    config = replace(CONFIG, frontends=fronts, dispatch=replace(CONFIG.dispatch, max_attempts=3))
    router = Router(config, [ModelSource(MODEL, MODEL_DIR), *texts], TOKEN)
    addresses = await router.start()
    workers = {v: PlayedWorker("decode", addresses, name=f"decode-{v}", version=v) for v in ("v1", "v2")}
    try:
        for worker in workers.values():
            await worker.join()
        await until_ready(addresses.http)
        yield router, addresses, workers
    finally:
        for worker in workers.values():
            worker.leave()
        await router.stop()


async def complete(addresses: Addresses, model: str = MODEL, **fields: Any) -> tuple[int, dict[str, Any]]:
    body = completion(max_tokens=2, ignore_eos=True, **fields) | {"model": model}
    status, answer = await ask(addresses.http, "POST", "/v1/completions", body)
    return status, orjson.loads(answer)


async def until_told(addresses: Addresses, fronts: int) -> None:
    """All fronts know of both versions."""
    async with asyncio.timeout(30):
        while True:
            answers = [await complete(addresses, f"{MODEL}@v2") for _ in range(8 * fronts)]
            if {status for status, _ in answers} == {200}:
                return


@pytest.mark.parametrize("fronts", [1, 2])
def test_answers_name_their_version_and_keep_the_split(fronts: int) -> None:
    async def main() -> None:
        async with routing(fronts) as (router, addresses, _):
            await until_told(addresses, fronts)
            router.service.set_split(MODEL, {"v1": 90, "v2": 10})
            seen: Counter[str] = Counter()
            for _ in range(50):
                status, answer = await complete(addresses)
                assert status == 200
                seen[answer["system_fingerprint"]] += 1
            assert seen == {"v1": 45, "v2": 5}
            assert (await complete(addresses, f"{MODEL}@v2"))[1]["system_fingerprint"] == "v2"
            assert (await complete(addresses, f"{MODEL}@v3"))[0] == 404
            assert (await complete(addresses, f"{MODEL}@"))[0] == 404
            exchange = await Exchange.begin(
                addresses.http,
                "POST",
                "/v1/completions",
                completion(max_tokens=3, ignore_eos=True, stream=True) | {"model": f"{MODEL}@v1"},
            )
            _, body = await exchange.end()
            chunks = [event for event in events_of(body) if isinstance(event, dict)]
            assert {chunk["system_fingerprint"] for chunk in chunks} == {"v1"}

    run(main, deadline_s=110)


@pytest.mark.parametrize("fronts", [1, 2])
def test_a_router_that_is_restarted_during_an_update_begins_with_both_texts(fronts: int, tmp_path: Path) -> None:
    write_byte_model(tmp_path, temperature=0.0)

    async def main() -> None:
        async with routing(fronts, [ModelSource(MODEL, tmp_path, text_of="v2")]) as (_, addresses, _):
            await until_told(addresses, fronts)
            for version, is_bytes in (("v1", False), ("v2", True)):
                for _ in range(2 * fronts):
                    status, answer = await complete(addresses, f"{MODEL}@{version}", prompt="hello")
                    assert (status, answer["usage"]["prompt_tokens"] == 5) == (200, is_bytes)

    run(main, deadline_s=110)


@pytest.mark.parametrize("fronts", [1, 2])
def test_versions_with_different_tokenizers_get_tokens_of_their_own(fronts: int, tmp_path: Path) -> None:
    """v2 has single bytes for tokens: 5 of "hello", and another text for the token that the workers say."""
    write_byte_model(tmp_path, temperature=0.0)

    async def seen_of(addresses: Addresses, count: int, **fields: Any) -> Counter[tuple[str, int, str]]:
        answers = [await complete(addresses, prompt="hello", **fields) for _ in range(count)]
        assert {status for status, _ in answers} == {200}
        return Counter(
            (one["system_fingerprint"], one["usage"]["prompt_tokens"], one["choices"][0]["text"]) for _, one in answers
        )

    async def main() -> None:
        async with routing(fronts) as (router, addresses, workers):
            await until_told(addresses, fronts)
            router.service.set_split(MODEL, {"v1": 100, "v2": 0})
            await router.models.add_text(ModelSource(MODEL, tmp_path, text_of="v2"))
            ((old, _),) = (await seen_of(addresses, 8)).items()
            assert old[0] == "v1"
            assert old[1] != 5
            new = ("v2", 5, Tokenizer.from_file(str(tmp_path / "tokenizer.json")).decode([100, 100]))
            assert old[2] != new[2]
            router.service.set_split(MODEL, {"v1": 50, "v2": 50})
            async with asyncio.timeout(30):
                while len(seen := await seen_of(addresses, 20)) < 2:
                    pass
            assert set(seen) == {old, new}
            for session in ("a", "b", "c", "d"):
                assert len(await seen_of(addresses, 6, session_id=session)) == 1
            for version, expected in (("v1", old), ("v2", new)):
                status, answer = await complete(addresses, f"{MODEL}@{version}", prompt="hello")
                assert (status, answer["usage"]["prompt_tokens"]) == (200, expected[1])
            lengths = {len(request.prompt_ids) // 4 for request in workers["v2"].requests}
            assert lengths == {5}, "no token of another tokenizer came to it"
            await router.models.set_text(ModelSource(MODEL, tmp_path))
            workers["v1"].leave()
            router.service.set_split(MODEL, None)
            router.models.remove_text(MODEL, "v2")
            async with asyncio.timeout(30):
                while set(await seen_of(addresses, 8)) != {new}:
                    pass

    run(main, deadline_s=110)


def test_all_choices_of_an_answer_come_from_one_version() -> None:
    async def main() -> None:
        async with routing() as (router, addresses, _):
            router.service.set_split(MODEL, {"v1": 50, "v2": 50})
            for _ in range(4):
                status, answer = await complete(addresses, n=3)
                assert (status, len(answer["choices"])) == (200, 3)
                reply = orjson.loads((await ask(addresses.http, "GET", "/v1/requests?limit=3"))[1])["data"]
                assert {one["version"] for one in reply} == {answer["system_fingerprint"]}

    run(main, deadline_s=60)


def test_models_status_and_metrics_tell_of_versions() -> None:
    async def main() -> None:
        async with routing() as (router, addresses, workers):
            router.service.set_split(MODEL, {"v1": 100, "v2": 0})
            for _ in range(3):
                assert (await complete(addresses))[0] == 200
            models = orjson.loads((await ask(addresses.http, "GET", "/v1/models"))[1])
            assert [one["id"] for one in models["data"]] == [MODEL, f"{MODEL}@v1", f"{MODEL}@v2"]
            assert (await ask(addresses.http, "GET", f"/v1/models/{MODEL}@v2"))[0] == 200
            status = orjson.loads((await ask(addresses.http, "GET", "/cluster/status"))[1])
            assert {one["version"] for one in status["workers"]} == {"v1", "v2"}
            first, second = status["versions"]
            assert (first["name"], first["weight"], first["num_decode"]) == ("v1", 100, 1)
            assert first["counts"]["num_requests"] >= 3
            assert (second["name"], second["weight"], second["is_live"]) == ("v2", 0, True)
            page = (await ask(addresses.http, "GET", "/metrics"))[1].decode()
            assert 'slipstream:version_requests_total{model_name="demo",outcome="length",version="v1"}' in page
            assert 'slipstream:version_workers{model_name="demo",role="decode",version="v2"} 1.0' in page
            workers["v2"].leave()
            async with asyncio.timeout(30):
                while len(models["data"]) > 1:
                    models = orjson.loads((await ask(addresses.http, "GET", "/v1/models"))[1])
            assert (await complete(addresses, f"{MODEL}@v1"))[0] == 200

    run(main, deadline_s=60)


def test_a_stream_whose_version_goes_away_goes_on_with_the_other_one() -> None:
    async def main() -> None:
        async with routing() as (router, addresses, workers):
            router.service.set_split(MODEL, {"v1": 0, "v2": 100})
            workers["v2"].may_go_on.clear()
            body = completion(max_tokens=4, ignore_eos=True, stream=True)
            exchange = await Exchange.begin(addresses.http, "POST", "/v1/completions", body)
            begun = await exchange.reader.readuntil(b'"v2"')
            router.service.set_split(MODEL, {"v1": 100, "v2": 0})
            workers["v2"].leave()
            rest = await exchange.reader.read()
            exchange.writer.close()
            await exchange.writer.wait_closed()
            assert b'"v1"' in rest
            assert b"[DONE]" in rest
            assert b'"error"' not in begun + rest

    run(main, deadline_s=60)
