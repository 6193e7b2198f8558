"""The pages about the cluster's state at a router with two models: sums, each model's own part, and readiness."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import orjson
import pytest

from slipstream.router.catalog.served_model import ModelSource
from slipstream.router.process.addresses import Addresses
from slipstream.router.registry.expected_workers import ExpectedWorkers
from slipstream.router.router import Router
from tests.router.test_http_router import CONFIG, TOKEN, PlayedWorker, ask, completion, readiness, until_ready
from tests.support.router.byte_model import write_byte_model
from tests.support.router.fake_cluster import MODEL, MODEL_DIR, run


@contextlib.asynccontextmanager
async def routing(tmp_path: Path) -> AsyncIterator[tuple[Router, Addresses]]:
    sources = [ModelSource(MODEL, MODEL_DIR), ModelSource("bytes", write_byte_model(tmp_path / "bytes"))]
    router = Router(CONFIG, sources, TOKEN)
    addresses = await router.start()
    try:
        yield router, addresses
    finally:
        await router.stop()


def test_a_status_has_sums_and_each_model(tmp_path: Path) -> None:
    async def main() -> None:
        async with routing(tmp_path) as (router, addresses):
            at = addresses.http
            router.models.expect({MODEL: ExpectedWorkers(), "bytes": ExpectedWorkers(num_decode=0)})
            await PlayedWorker("decode", addresses).join()
            await until_ready(at)
            waiting = asyncio.create_task(ask(at, "POST", "/v1/completions", {**completion(), "model": "bytes"}))
            while not router.service.signals_of("bytes").num_waiting:
                await asyncio.sleep(0.002)
            status = orjson.loads((await ask(at, "GET", "/cluster/status"))[1])
            assert (status["ready"], status["num_waiting"], status["queue_depth"]) == (True, 1, {"0": 1})
            assert [(worker["peer"]["name"], worker["model"]) for worker in status["workers"]] == [("decode-0", MODEL)]
            assert {name: one["num_waiting"] for name, one in status["models"].items()} == {MODEL: 0, "bytes": 1}
            for name, one in status["models"].items():
                assert orjson.loads((await ask(at, "GET", f"/cluster/status?model={name}"))[1]).keys() == one.keys()
                assert one["model"] == name
            signals = orjson.loads((await ask(at, "GET", "/cluster/signals?model=bytes"))[1])
            assert (signals["num_waiting"], signals["workers"]) == (1, [])
            other = await PlayedWorker("decode", addresses, name="decode-1", model="bytes").join()
            assert (await waiting)[0] == 200
            profile = orjson.loads((await ask(at, "GET", "/cluster/profile?model=bytes"))[1])
            assert [role["role"] for role in profile["roles"] if role["num_workers"]] == ["decode"]
            listed = orjson.loads((await ask(at, "GET", "/v1/requests?model=bytes&tenant="))[1])["data"]
            assert {one["model"] for one in listed} == {"bytes"}
            other.leave()

    run(main)


def test_where_several_models_are_served_the_page_of_one_has_to_be_asked_for(tmp_path: Path) -> None:
    async def main() -> None:
        async with routing(tmp_path) as (_, addresses):
            for path in ("/cluster/signals", "/cluster/profile"):
                for query, status, part in (
                    ("", 400, f"'model' is required: one of '{MODEL}', 'bytes'."),
                    ("?model=other", 404, f"There is no model 'other'; there are '{MODEL}', 'bytes'."),
                    ("?models=bytes", 400, "Unrecognized query parameter: 'models'; known are model."),
                ):
                    found, body = await ask(addresses.http, "GET", path + query)
                    assert (found, orjson.loads(body)["error"]["message"]) == (status, part)

    run(main)


def test_the_cluster_waits_for_every_model_of_the_start_and_later_for_any(tmp_path: Path) -> None:
    async def main() -> None:
        async with routing(tmp_path) as (router, addresses):
            missing = await readiness(addresses.http)
            for name in (MODEL, "bytes"):
                assert f"model {name}: no decode worker has connected yet" in missing
            first = await PlayedWorker("decode", addresses).join()
            while MODEL in (missing := await readiness(addresses.http)):
                await asyncio.sleep(0.002)
            assert "model bytes: no decode worker has connected yet" in missing
            other = await PlayedWorker("decode", addresses, name="decode-1", model="bytes").join()
            await until_ready(addresses.http)
            other.leave()
            while router.service.has_workers("bytes"):
                await asyncio.sleep(0.002)
            assert await readiness(addresses.http) == "ready"
            await router.models.add(ModelSource("third", tmp_path / "bytes", aliases=("3",)))
            assert await readiness(addresses.http) == "ready"
            first.leave()
            while router.service.has_workers(MODEL):
                await asyncio.sleep(0.002)
            assert f"model {MODEL}: no decode worker is connected" in await readiness(addresses.http)

    run(main)


def test_a_broken_model_leaves_the_others_alone(tmp_path: Path) -> None:
    async def main() -> None:
        async with routing(tmp_path) as (router, _):
            broken = tmp_path / "broken"
            broken.mkdir()
            (broken / "tokenizer.json").write_text("{")
            with pytest.raises((ValueError, OSError), match="broken"):
                await router.models.add(ModelSource("broken", broken))
            assert router.service.models == (MODEL, "bytes")
            await router.models.remove("bytes")
            assert router.service.models == (MODEL,)

    run(main)
