"""Models that come, move their names and go while several front processes serve: real processes, real sockets."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import orjson
import pytest

from slipstream.router.catalog.served_model import ModelSource
from slipstream.router.process.addresses import Endpoint
from slipstream.router.router_models import RouterModels
from tests.router.test_http_router import PlayedWorker, ask
from tests.support.router.byte_model import write_byte_model
from tests.support.router.fake_cluster import MODEL, MODEL_DIR, run
from tests.support.router.routing import NUM_CLIENTS, fronts_of, routing, until


async def asked_of_all(at: Endpoint, path: str, **fields: object) -> list[tuple[int, dict[str, object]]]:
    """The answers on connections of their own, of which each front gets some."""
    answers = await asyncio.gather(*(ask(at, "POST", path, fields) for _ in range(NUM_CLIENTS)))
    return [(status, orjson.loads(answer)) for status, answer in answers]


async def statuses_of_all(at: Endpoint, model: str) -> set[int]:
    answers = await asked_of_all(at, "/v1/completions", model=model, prompt="abc", max_tokens=2, ignore_eos=True)
    return {status for status, _ in answers}


async def until_all_answer(at: Endpoint, model: str, status: int) -> None:
    """Until all fronts have heard of a change."""
    async with asyncio.timeout(60):
        while await statuses_of_all(at, model) != {status}:
            pass


async def counted_by_all(at: Endpoint, model: str) -> set[object]:
    """How many tokens the fronts find in a text."""
    return {answer.get("count") for _, answer in await asked_of_all(at, "/tokenize", model=model, prompt="def f(x):")}


def test_a_model_comes_to_all_fronts_changes_its_names_and_goes_while_the_first_one_serves(tmp_path: Path) -> None:
    async def main() -> None:
        async with routing() as (router, addresses, _):
            at, stop = addresses.http, asyncio.Event()

            async def keep_asking() -> set[int]:
                statuses = set[int]()
                while not stop.is_set():
                    statuses |= await statuses_of_all(at, MODEL)
                return statuses

            asking = asyncio.create_task(keep_asking())
            folder = write_byte_model(tmp_path / "bytes")
            assert await statuses_of_all(at, "bytes") == {404}
            await router.models.add(ModelSource("bytes", folder, aliases=("b", "latest")))
            other = await PlayedWorker("decode", addresses, name="decode-1", model="bytes").join()
            await until_all_answer(at, "bytes", 200)
            await until_all_answer(at, "latest", 200)
            assert await counted_by_all(at, "b") == {len("def f(x):")}
            (demo,) = await counted_by_all(at, MODEL)
            assert demo != len("def f(x):")
            router.models.set_aliases(MODEL, ["latest"])
            async with asyncio.timeout(60):
                while await counted_by_all(at, "latest") != {demo}:
                    pass
            models = orjson.loads((await ask(at, "GET", "/v1/models"))[1])["data"]
            assert [card["id"] for card in models] == [MODEL, "latest", "bytes", "b"]
            removal = asyncio.create_task(router.models.remove("bytes"))
            await until(lambda: router.service.is_leaving("bytes"))
            other.leave()
            await removal
            for name, status in (("bytes", 404), ("b", 404), ("latest", 200)):
                await until_all_answer(at, name, status)
            assert router.front.counts.models.keys() == {MODEL}
            stop.set()
            assert await asking == {200}

    run(main, deadline_s=110)


def test_a_front_that_is_started_anew_knows_the_models_that_came_before_and_their_names(tmp_path: Path) -> None:
    async def main() -> None:
        async with routing() as (router, addresses, _):
            at, pool = addresses.http, fronts_of(router)
            await router.models.add(ModelSource("bytes", write_byte_model(tmp_path / "bytes")))
            await PlayedWorker("decode", addresses, name="decode-1", model="bytes").join()
            pids = set(pool.pids)
            for front in list(pool._fronts):
                os.kill(front.process.pid, signal.SIGKILL)
            router.models.set_aliases("bytes", ["b"])  # which none of the new ones has been started with, or both
            await until(lambda: len(pool.pids) == len(pids) and not pids & set(pool.pids))
            await asyncio.gather(*(front.listens for front in pool._fronts))
            await until_all_answer(at, "b", 200)

    run(main, deadline_s=110)


def test_a_model_that_a_front_cannot_read_or_dies_of_is_refused_as_a_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with routing() as (router, addresses, _):
            at, pool = addresses.http, fronts_of(router)
            read, folder = RouterModels._read, write_byte_model(tmp_path / "bytes")
            with monkeypatch.context() as patch:
                patch.setattr(RouterModels, "_read", lambda self, _: read(self, ModelSource("bytes", folder)))
                victim, slow = pool._fronts
                os.kill(slow.process.pid, signal.SIGSTOP)
                with pytest.raises(ValueError, match=r"a front cannot serve the model 'bytes': .*missing"):
                    await router.models.add(ModelSource("bytes", tmp_path / "missing"))
            os.kill(slow.process.pid, signal.SIGCONT)
            await router.models.add(
                ModelSource("late", folder)
            )  # which it answers behind its late answer about the other
            os.kill(victim.process.pid, signal.SIGSTOP)
            adding = asyncio.create_task(router.models.add(ModelSource("bytes", folder)))
            await until(lambda: bool(victim._loads))
            os.kill(victim.process.pid, signal.SIGKILL)
            with pytest.raises(ValueError, match=r"a front cannot serve the model 'bytes': front process .* has ended"):
                await adding
            assert router.service.models == (MODEL, "late")
            await until(lambda: victim not in pool._fronts and len(pool.pids) == 2)
            assert slow in pool._fronts
            await asyncio.gather(*(front.listens for front in pool._fronts))
            assert await statuses_of_all(at, "bytes") == {404}
            with pytest.raises(ValueError, match="the name 'demo' is served already"):
                await router.models.add(ModelSource("other", MODEL_DIR, aliases=(MODEL,)))
            await router.models.add(ModelSource("bytes", folder))
            await PlayedWorker("decode", addresses, name="decode-1", model="bytes").join()
            await until_all_answer(at, "bytes", 200)

    run(main, deadline_s=110)
