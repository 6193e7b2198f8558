"""A version that gets copies of requests, over real connections: clients and counts see nothing of it."""

from __future__ import annotations

import asyncio
from typing import Any

from slipstream.router.dispatch.mirror.mirror import PREFIX
from slipstream.router.dispatch.service import GenerationService
from slipstream.router.protocol.generation import GenerateRequest
from slipstream.router.protocol.messages import Cancel, Generate, SamplingParams
from slipstream.router.status.version_status import VersionStatus
from tests.router.dispatch.test_generation_service import WorkerEnd, hello, serve, until

GREEDY = SamplingParams(max_tokens=8, temperature=0.0)


def request(name: str, **more: Any) -> GenerateRequest:
    return GenerateRequest(name, [7] * 5, GREEDY, **more)


def new_version(service: GenerationService) -> VersionStatus:
    return next(one for one in service.snapshot_of("m").versions if one.name == "2")


async def both(service: GenerationService) -> tuple[WorkerEnd, WorkerEnd]:
    """A worker of version 1 and, mirrored, one of version 2."""
    old = await WorkerEnd.join(service, hello("old", model_version="1"))
    service.set_mirror("m", "2", 100.0)
    new = await WorkerEnd.join(service, hello("new", model_version="2"))
    await until(lambda: new_version(service).num_decode == 1)
    return old, new


def test_copies_go_to_the_mirrored_version_alone_and_their_answers_are_compared() -> None:
    async def scenario(service: GenerationService) -> None:
        old, new = await both(service)
        stream = service.submit(request("r", tenant="alice", session="s"))
        original, copy = (await old.next(Generate)).request, (await new.next(Generate)).request
        assert original.request_id == "r"
        assert copy.request_id.startswith(PREFIX)
        assert copy.prompt_ids == original.prompt_ids
        new.chunk(copy.request_id, 0, 5, 6, finish="stop")
        old.chunk("r", 0, 5, 9, finish="stop")
        assert [token_id async for delta in stream for token_id, _ in delta] == [5, 9]
        await until(lambda: new_version(service).mirror.num_compared == 1)  # type: ignore[union-attr]
        status = new_version(service)
        assert status.mirror is not None
        assert (status.mirror.num_copied, status.mirror.num_equal, status.mirror.first_differences) == (1, 0, 1)
        assert (status.counts.num_requests, dict(status.counts.ends), status.is_live) == (1, {"stop": 1}, False)

    serve(scenario)


def test_nobody_sees_a_copy() -> None:
    async def scenario(service: GenerationService) -> None:
        old, new = await both(service)
        service.submit(request("r"))
        await old.next(Generate)
        copy = (await new.next(Generate)).request
        snapshot, signals = service.snapshot_of("m"), service.signals_of("m")
        assert service.versions_of("m") == ("1",)
        assert (snapshot.num_requests, snapshot.totals.num_prompt_tokens) == (1, 5)
        assert (signals.num_running, signals.short.num_arrivals) == (1, 1)
        assert service.history.get(copy.request_id) is None
        assert [record.request_id for record in service.history.latest()] == ["r"]
        old.chunk("r", 0, 5, finish="length")
        await service.wait_idle()  # although the copy still runs

    serve(scenario)


def test_a_copy_ends_where_its_client_has_left() -> None:
    async def scenario(service: GenerationService) -> None:
        old, new = await both(service)
        stream = service.submit(request("r"))
        await old.next(Generate)
        copy = (await new.next(Generate)).request
        old.chunk("r", 0, 5)
        async for _ in stream:
            break
        stream.cancel()
        new.chunk(copy.request_id, 0, 5)
        await new.next(Cancel)
        await until(lambda: new_version(service).mirror.num_equal == 1)  # type: ignore[union-attr]

    serve(scenario)


def test_what_the_mirrored_version_cannot_take_is_skipped_and_a_broken_one_fails_copies_only() -> None:
    async def scenario(service: GenerationService) -> None:
        old, new = await both(service)
        service.submit(request("r"))
        await old.next(Generate)
        await new.next(Generate)
        new.protocol.close()
        await until(lambda: new_version(service).num_decode == 0)
        service.submit(request("r2"))
        await old.next(Generate)
        for request_id in ("r", "r2"):
            old.chunk(request_id, 0, 5, finish="length")
        await service.wait_idle()
        mirror = new_version(service).mirror
        assert mirror is not None
        assert mirror.num_copied == 1

    serve(scenario)


def test_the_end_of_the_mirror_sends_its_workers_to_the_clients() -> None:
    async def scenario(service: GenerationService) -> None:
        old, new = await both(service)
        service.submit(request("r"))
        await old.next(Generate)
        await new.next(Generate)
        service.set_split("m", {"1": 0, "2": 100})
        service.set_mirror("m", "2", None)
        await new.lost
        again = await WorkerEnd.join(service, hello("new", epoch=2, model_version="2"))
        service.submit(request("r2"))
        assert (await again.next(Generate)).request.request_id == "r2"
        old.chunk("r", 0, 5, finish="length")
        again.chunk("r2", 0, 5, finish="length")
        await service.wait_idle()
        assert new_version(service).mirror is None

    serve(scenario)


def test_workers_that_serve_already_come_anew_when_their_version_is_mirrored() -> None:
    async def scenario(service: GenerationService) -> None:
        await WorkerEnd.join(service, hello("old", model_version="1"))
        new = await WorkerEnd.join(service, hello("new", model_version="2"))
        service.set_mirror("m", "2", 5.0)
        await new.lost
        await until(lambda: service.versions_of("m") == ("1",))
        await asyncio.sleep(0)

    serve(scenario)


def test_workers_of_the_mirrored_version_are_in_the_budget_of_pages_with_the_weight_of_their_model() -> None:
    async def scenario(service: GenerationService) -> None:
        service.set_weight("m", 3.0)
        service.set_mirror("m", "2", 100.0)
        await WorkerEnd.join(service, hello("new", model_version="2", page_limit=0))
        await until(lambda: new_version(service).num_decode == 1)
        assert [(one.name, one.weight) for one in service.budgeted_workers()] == [("new", 3.0)]

    serve(scenario)
