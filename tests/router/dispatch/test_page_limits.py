"""What the router knows of the pages that workers need, and the limits that it sends them."""

from __future__ import annotations

import asyncio
from collections import deque

import pytest

from slipstream.kv_transfer.api.ticket import PeerId, TransferAddress
from slipstream.router.config.router_config import DispatchConfig
from slipstream.router.dispatch.dispatcher import Dispatcher
from slipstream.router.dispatch.page_limits import PageLimits
from slipstream.router.page_budget.page_ledger import BudgetedWorker
from slipstream.router.protocol.generation import GenerateRequest
from slipstream.router.protocol.messages import Credits, Hello, PageLayout, PageLimit, PagesHeld, SamplingParams
from tests.support.router.greetings import make_hello

LAYOUT = PageLayout(2, 4, 32, 1024)
PAGE_BYTES = 2 * 4 * 1024


def elastic(name: str, **fields: object) -> Hello:
    return make_hello(name, **{"page_limit": 0, "layout": LAYOUT, "max_model_len": 160, **fields})


def joined(*hellos: Hello) -> Dispatcher:
    dispatcher = Dispatcher(DispatchConfig(local_prefill_max_tokens=100_000))
    for hello in hellos:
        dispatcher.worker_joined(hello, 0.0)
        pages = hello.num_pages if hello.page_limit is None else hello.page_limit
        dispatcher.worker_message(hello.worker, Credits(0, hello.max_slots, pages, 1000), 0.0)
    return dispatcher


def submit(dispatcher: Dispatcher, name: str, num_tokens: int) -> None:
    dispatcher.submit(GenerateRequest(name, [7] * num_tokens, SamplingParams(4)), 0.0)


def test_a_worker_is_seen_with_its_hosts_sizes_and_last_report() -> None:
    hello = elastic("d", addresses=(TransferAddress("h", 1), TransferAddress("g", 1)), page_limit=5)
    dispatcher = joined(hello, make_hello("fixed"))
    report = PagesHeld(0, 5, 3, 1, 0)
    dispatcher.worker_message(hello.worker, report, 0.0)
    assert dispatcher.budgeted_workers(2.0) == [
        BudgetedWorker(PeerId("d", 1), ("h", "g"), PAGE_BYTES, 100, 10, 5, report, 0, 2.0)
    ]


def test_waiting_requests_ask_for_pages_where_most_room_could_be() -> None:
    dispatcher = joined(elastic("a"), elastic("b", num_pages=60), elastic("full", max_slots=1))
    dispatcher.worker_message(PeerId("full", 1), Credits(0, 0, 0, 0), 0.0)
    for at, num_tokens in enumerate((100, 31, 32)):
        submit(dispatcher, f"r{at}", num_tokens)
    asked = {worker.name: worker.num_asked for worker in dispatcher.budgeted_workers()}
    assert asked == {"a": 7 + 2 + 3, "b": 0, "full": 0}
    for at in range(3, 8):
        submit(dispatcher, f"r{at}", 150)
    asked = {worker.name: worker.num_asked for worker in dispatcher.budgeted_workers()}
    assert asked == {"a": 12 + 10, "b": 4 * 10, "full": 0}, "a slot takes one request"


def test_prompts_ask_for_pages_on_prefill_workers_too() -> None:
    dispatcher = joined(elastic("d"), elastic("p", role="prefill"))
    submit(dispatcher, "r", 100)
    assert {worker.name: worker.num_asked for worker in dispatcher.budgeted_workers()} == {"d": 7, "p": 7}


class Port:
    """A router's workers, and the limits that they were sent."""

    def __init__(self, *dispatchers: Dispatcher) -> None:
        self.dispatchers = dispatchers
        self.sent: deque[tuple[str, int]] = deque()
        self.joins = asyncio.Event()
        self.fails = False  # once

    def budgeted_workers(self) -> list[BudgetedWorker]:
        if self.fails:
            self.fails = False
            raise RuntimeError("by the test")
        return [worker for dispatcher in self.dispatchers for worker in dispatcher.budgeted_workers()]

    def limit_pages(self, peer: PeerId, limit: PageLimit) -> None:
        self.sent.append((peer.name, limit.num_pages))

    async def wait_for_join(self) -> None:
        await self.joins.wait()


def test_workers_of_several_models_divide_a_host() -> None:
    port = Port(joined(elastic("a")), joined(elastic("b", layout=PageLayout(4, 4, 32, 1024))))
    limits = PageLimits(90 * PAGE_BYTES, [port])
    assert limits.look()
    sent = dict(port.sent)
    assert limits.budget.limit_of(PeerId("a", 1)) == sent["a"]
    assert sent["a"] + 2 * sent["b"] <= 90
    assert min(sent.values()) >= 10


def test_without_a_budget_each_has_its_whole_pool() -> None:
    port = Port(joined(elastic("a"), elastic("b", num_pages=30)))
    PageLimits(None, [port]).look()
    assert dict(port.sent) == {"a": 100, "b": 30}


@pytest.mark.parametrize("fails", [False, True])
def test_the_loop_sleeps_without_workers_and_survives_a_failure(fails: bool) -> None:
    async def run() -> None:
        port = Port()
        limits = PageLimits(1e6, [port])
        task = asyncio.create_task(limits.run())
        await asyncio.sleep(0)
        port.dispatchers = (joined(elastic("a")),)
        port.fails = fails
        port.joins.set()
        while not port.sent:
            await asyncio.sleep(0.005)
        assert not task.done()
        task.cancel()

    asyncio.run(asyncio.wait_for(run(), 10))
