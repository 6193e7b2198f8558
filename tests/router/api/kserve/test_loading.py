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
