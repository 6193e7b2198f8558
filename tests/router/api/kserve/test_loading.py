"""Calls that come before the models of the start are loaded, as after a restart of the router."""

from __future__ import annotations

import asyncio

from tests.support.router.fake_cluster import run
from tests.support.router.kserve_site import AB, ADD_SUB, kserve_site


def test_a_call_about_a_model_waits_until_the_models_are_loaded() -> None:
    async def main() -> None:
        async with kserve_site() as site:
            site.kserve.loaded.clear()
            answer = asyncio.create_task(site.post(ADD_SUB, {"inputs": AB}))
            # Others are served meanwhile.
            assert (await site.call("GET", "/v2/health/live"))[0] == 200
            assert (await site.post("/v2/repository/index"))[0] == 200
            assert not answer.done()
            site.kserve.loaded.set()
            assert (await answer)[0] == 200

    run(main)


def test_a_load_waits_too_lest_the_one_of_the_start_comes_after_it() -> None:
    async def main() -> None:
        async with kserve_site() as site:
            site.kserve.loaded.clear()
            paths = ("/v2/repository/models/add_sub/load", "/v2/repository/models/add_sub/unload")
            answers = [asyncio.create_task(site.post(path)) for path in paths]
            for _ in range(5):  # time enough for what does not wait
                assert (await site.post("/v2/repository/index"))[0] == 200
            assert not any(answer.done() for answer in answers)
            site.kserve.loaded.set()
            assert [(await answer)[0] for answer in answers] == [200, 200]

    run(main)
