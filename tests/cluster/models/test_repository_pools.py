"""Pools of language models follow what the router wants: the router and the pools are scripted."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from contextlib import asynccontextmanager, suppress
from functools import wraps

from slipstream.cluster.fleet.fleet_port import FleetError
from slipstream.cluster.models.pool_step import ServedPools, asked_as
from slipstream.cluster.models.repository_pools import RepositoryPools
from slipstream.router.status.wanted_models import Want, WantedList, WantedModel, WantedModels

CHAT, NEWER = WantedModel("chat", "/m/1"), WantedModel("chat", "/m/2")
OTHER = WantedModel("other", "/o")


class ScriptedRouter:
    """`wanted` is that of its present incarnation; None: there is no router."""

    def __init__(self) -> None:
        self.ready = asyncio.Event()
        self.failures: list[tuple[WantedModel, str]] = []
        self.wanted: WantedModels | None = None
        self._died = asyncio.Event()
        self.start()

    def start(self) -> None:
        self.wanted = WantedModels(lambda model, reason: self.failures.append((model, reason)))
        self._died = asyncio.Event()
        self.ready.set()

    def die(self) -> None:
        self.wanted = None
        self.ready.clear()
        self._died.set()

    async def wanted_models(self, known: WantedList | None) -> WantedList:
        if self.wanted is None:
            raise ConnectionError("there is no router")
        change, death = asyncio.ensure_future(self.wanted.other_than(known)), asyncio.ensure_future(self._died.wait())
        try:
            await asyncio.wait([change, death], return_when=asyncio.FIRST_COMPLETED)
            if not change.done():
                raise ConnectionError("the router died")
            return change.result()
        finally:
            change.cancel()
            death.cancel()

    async def wanted_model_served(self, model: WantedModel) -> None:
        if self.wanted is None:
            raise ConnectionError("there is no router")
        self.wanted.serve(model)

    async def wanted_model_failed(self, model: WantedModel, reason: str) -> None:
        if self.wanted is None:
            raise ConnectionError("there is no router")
        self.wanted.fail(model, reason)


class ScriptedPools:
    """`broken` are the paths of models that cannot be served, `faulty` those with which the control itself fails. With
    `holds`, an addition waits for `goes_on`; with `forgets`, the end of what leaves is not seen."""

    def __init__(self) -> None:
        self.served: dict[str, ServedPools] = {}
        self.broken: set[str] = set()
        self.faulty: set[str] = set()
        self.done: list[str] = []
        self.aliases: dict[str, tuple[str, ...]] = {}
        self.holds = False
        self.forgets = False
        self.goes_on = asyncio.Event()

    @property
    def names(self) -> Collection[str]:
        return list(self.served)

    def of(self, name: str) -> ServedPools | None:
        return self.served.get(name)

    async def add(self, model: WantedModel) -> None:
        self.done.append(f"add {model.path}")
        if self.holds:
            await self.goes_on.wait()
        self._check(model)
        self.served[model.name] = ServedPools(asked_as(model))

    async def exchange(self, model: WantedModel) -> None:
        self.done.append(f"exchange {model.path}")
        self._check(model)
        self.served[model.name] = ServedPools(asked_as(model))

    async def until_served(self, name: str) -> None:
        self.done.append(f"await {name}")

    async def remove(self, name: str) -> None:
        self.done.append(f"remove {name}")
        del self.served[name]

    async def until_removed(self, name: str) -> None:
        if self.forgets:
            return
        await self.goes_on.wait()
        self.served.pop(name, None)

    async def set_aliases(self, aliases: Mapping[str, tuple[str, ...]]) -> None:
        self.aliases = dict(aliases)

    def _check(self, model: WantedModel) -> None:
        if model.path in self.faulty:
            raise KeyError("a fault")
        if model.path in self.broken:
            raise FleetError("invalid", "config", f"no config.json in {model.path}")


Test = Callable[[ScriptedRouter, ScriptedPools], Awaitable[None]]


@asynccontextmanager
async def running(router: ScriptedRouter, pools: ScriptedPools) -> AsyncIterator[None]:
    task = asyncio.create_task(RepositoryPools(router, pools).run())
    try:
        async with asyncio.timeout(10):
            yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


def scenario(test: Test) -> Callable[[], None]:
    @wraps(test)
    def run() -> None:
        async def play() -> None:
            router, pools = ScriptedRouter(), ScriptedPools()
            async with running(router, pools):
                await test(router, pools)

        asyncio.run(play())

    del run.__wrapped__  # type: ignore[attr-defined]  # pytest would look for fixtures
    return run


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.001)


def want(router: ScriptedRouter, model: WantedModel) -> Want:
    assert router.wanted is not None
    return router.wanted.want(model)


@scenario
async def test_a_model_gets_pools_when_it_is_wanted_and_loses_them_when_it_is_not(
    router: ScriptedRouter, pools: ScriptedPools
) -> None:
    assert router.wanted is not None
    router.wanted.complete()
    one = want(router, CHAT)
    await until(lambda: "chat" in pools.served)
    router.wanted.drop(one)
    await until(lambda: "chat" not in pools.served)
    assert pools.done == ["add /m/1", "remove chat"]


@scenario
async def test_an_operators_model_is_used_and_stays(router: ScriptedRouter, pools: ScriptedPools) -> None:
    assert router.wanted is not None
    pools.served["chat"] = ServedPools("")
    router.wanted.complete()
    one = want(router, CHAT)
    await until(lambda: pools.done == ["await chat"])
    router.wanted.drop(one)
    want(router, OTHER)
    await until(lambda: "other" in pools.served)
    assert pools.done == ["await chat", "add /o"]
    assert "chat" in pools.served


@scenario
async def test_why_a_model_cannot_be_served_reaches_the_router_and_the_next_want_is_tried(
    router: ScriptedRouter, pools: ScriptedPools
) -> None:
    pools.broken.add("/m/1")
    want(router, CHAT)
    await until(lambda: bool(router.failures))
    assert router.failures == [(CHAT, "no config.json in /m/1")]
    pools.broken.clear()
    want(router, CHAT)
    await until(lambda: "chat" in pools.served)
    assert pools.done == ["add /m/1", "add /m/1"]


@scenario
async def test_a_model_that_is_wanted_again_in_the_moment_it_failed_is_tried_again(
    router: ScriptedRouter, pools: ScriptedPools
) -> None:
    pools.broken.add("/m/1")

    def again(model: WantedModel, reason: str) -> None:
        pools.broken.clear()
        want(router, model)

    router.wanted = WantedModels(again)
    router.wanted.want(CHAT)
    await until(lambda: "chat" in pools.served)
    assert pools.done == ["add /m/1", "add /m/1"]


@scenario
async def test_other_files_exchange_the_pools_and_if_they_fail_those_before_stay(
    router: ScriptedRouter, pools: ScriptedPools
) -> None:
    assert router.wanted is not None
    router.wanted.complete()
    before = want(router, CHAT)
    await until(lambda: "chat" in pools.served)
    pools.broken.add("/m/2")
    want(router, NEWER)
    await until(lambda: bool(router.failures))
    await until(lambda: pools.done[-1] == "await chat")  # the want of the version that serves counts again
    assert pools.served["chat"] == ServedPools(asked_as(CHAT))
    pools.broken.clear()
    want(router, NEWER)
    await until(lambda: pools.served["chat"] == ServedPools(asked_as(NEWER)))
    router.wanted.drop(before)  # the version that served ends
    want(router, OTHER)
    await until(lambda: "other" in pools.served)
    assert pools.served["chat"] == ServedPools(asked_as(NEWER))
    assert "remove chat" not in pools.done


@scenario
async def test_the_next_router_finds_the_pools_and_those_that_it_does_not_want_go(
    router: ScriptedRouter, pools: ScriptedPools
) -> None:
    want(router, CHAT)
    want(router, OTHER)
    await until(lambda: len(pools.served) == 2)
    router.die()
    router.start()
    assert router.wanted is not None
    want(router, CHAT)
    await until(lambda: pools.done[-1] == "await chat")
    assert set(pools.served) == {"chat", "other"}
    router.wanted.complete()
    await until(lambda: set(pools.served) == {"chat"})


@scenario
async def test_a_router_that_died_while_pools_started_is_not_waited_for(
    router: ScriptedRouter, pools: ScriptedPools
) -> None:
    pools.holds = True
    pools.broken.add("/m/1")
    want(router, CHAT)
    await until(lambda: pools.done == ["add /m/1"])
    router.die()
    pools.goes_on.set()
    pools.broken.clear()
    router.start()
    want(router, CHAT)
    await until(lambda: "chat" in pools.served)


@scenario
async def test_a_model_that_is_being_removed_is_started_anew(router: ScriptedRouter, pools: ScriptedPools) -> None:
    pools.served["chat"] = ServedPools(asked_as(CHAT), is_leaving=True)
    want(router, CHAT)
    await asyncio.sleep(0)
    assert pools.done == []
    pools.goes_on.set()
    await until(lambda: pools.served.get("chat") == ServedPools(asked_as(CHAT)))
    assert pools.done == ["add /m/1"]


@scenario
async def test_pools_whose_removal_has_failed_are_reported_and_hold_up_no_other_model(
    router: ScriptedRouter, pools: ScriptedPools
) -> None:
    pools.served["chat"] = ServedPools(asked_as(CHAT), is_leaving=True)
    pools.forgets = True
    want(router, CHAT)
    await until(lambda: bool(router.failures))
    assert router.failures == [(CHAT, "chat could not be removed")]
    want(router, OTHER)
    await until(lambda: "other" in pools.served)


@scenario
async def test_a_fault_in_the_pools_of_a_model_is_reported_to_those_who_wait_for_it(
    router: ScriptedRouter, pools: ScriptedPools
) -> None:
    pools.faulty.add("/m/1")
    want(router, CHAT)
    await until(lambda: bool(router.failures))
    assert router.failures == [(CHAT, "KeyError: 'a fault'")]


@scenario
async def test_the_router_hears_when_other_files_serve_in_the_place_of_those_before(
    router: ScriptedRouter, pools: ScriptedPools
) -> None:
    assert router.wanted is not None
    want(router, CHAT)
    await until(lambda: router.wanted is not None and router.wanted.is_served(CHAT))
    want(router, NEWER)
    assert not router.wanted.is_served(NEWER)
    await until(lambda: router.wanted is not None and router.wanted.is_served(NEWER))
    assert pools.done == ["add /m/1", "exchange /m/2"]


@scenario
async def test_a_further_name_goes_to_the_latest_that_wants_it(router: ScriptedRouter, pools: ScriptedPools) -> None:
    named = {"aliases": ["chat"]}
    want(router, WantedModel("chat.1", "/m/1", named))
    await until(lambda: pools.aliases == {"chat.1": ("chat",)})
    want(router, WantedModel("chat.2", "/m/2", named))
    await until(lambda: pools.aliases == {"chat.1": (), "chat.2": ("chat",)})
