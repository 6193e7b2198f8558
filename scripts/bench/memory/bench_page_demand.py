"""Throughput and latencies of two models in one budget of KV pages, as demand grows, in virtual time.

    python scripts/bench/memory/bench_page_demand.py
    python scripts/bench/memory/bench_page_demand.py --demand 1 10 --busy beside --seconds 60

Everything that decides is real: dispatchers, page budget, worker protocols, engines with their schedulers and page
pools. Only the model is left out: steps take the times of the demo model on a core of its own, so that the figures do
not depend on the machine. `demand` is the pages of all requests at once over those of the budget: of `one` model, of
`both`, or of one `beside` a single client of the other, which pauses for 0.2 s between its requests. `divided`: the
workers divide the budget; `halves`: each has a fixed half. `held_max_pages` is the largest sum of pages that both
engines held at any event. Raises AssertionError where that exceeds the budget.
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import json
import random
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT))

from slipstream.cluster.tools.bench.load.measures import percentile  # noqa: E402
from slipstream.kv_transfer.api.ticket import PeerId, TransferAddress  # noqa: E402
from slipstream.router.config.router_config import DispatchConfig  # noqa: E402
from slipstream.router.dispatch.dispatcher import Dispatcher  # noqa: E402
from slipstream.router.dispatch.table.actions import Action, Emit, Finish, Send  # noqa: E402
from slipstream.router.page_budget.page_budget import PageBudget  # noqa: E402
from slipstream.router.protocol.generation import GenerateRequest  # noqa: E402
from slipstream.router.protocol.messages import (  # noqa: E402
    PROTOCOL_VERSION,
    Hello,
    PageLayout,
    RouterMessage,
    SamplingParams,
    WorkerMessage,
)
from slipstream.workers.engine.limits.engine_limits import EngineLimits  # noqa: E402
from slipstream.workers.engine.native_engine import NativeEngine  # noqa: E402
from slipstream.workers.engine.plan.step_plan import SampledTokens, SamplingRow, StepPlan  # noqa: E402
from slipstream.workers.roles.worker_protocol import WorkerProtocol  # noqa: E402
from slipstream.workers.transfers.group_transfers import GroupTransfers  # noqa: E402
from slipstream.workers.transfers.ticket_issuer import TicketIssuer  # noqa: E402

How = Literal["divided", "halves"]
MODELS = ("chat", "code")
PAGE_TOKENS, HEAD_BYTES, NUM_LAYERS, NUM_HEADS = 16, 2048, 5, 4  # of the demo model in bf16
PAGE_BYTES = NUM_LAYERS * NUM_HEADS * HEAD_BYTES
STEP_S, DECODE_TOKEN_S, PREFILL_TOKEN_S = 1.5e-3, 0.15e-3, 0.27e-3
MESSAGE_S = 0.2e-3  # from the router to a worker, or back
LOOK_S = 0.1
PAUSE_S = 0.2


class NoModel:
    """An executor that picks token 7 always."""

    def execute(self, plan: StepPlan, sampling: Sequence[SamplingRow]) -> SampledTokens:
        return SampledTokens((7,) * len(plan.arrays.sample_rows))


@dataclass(slots=True)
class Client:
    """Sends one request after the other."""

    model: str
    pause_s: float = 0.0
    began_s: float = 0.0
    first_s: float | None = None


@dataclass(slots=True)
class Run:
    num_tokens: dict[str, int] = field(default_factory=lambda: dict.fromkeys(MODELS, 0))
    seconds: list[float] = field(default_factory=list)
    first_s: dict[str, list[float]] = field(default_factory=lambda: {model: [] for model in MODELS})
    num_failed: int = 0
    held_max_pages: int = 0


class World:
    """Two models with a worker each, their dispatchers, and clients. Times are virtual."""

    def __init__(self, how: How, args: argparse.Namespace) -> None:
        self.now_s = 0.0
        self.run = Run()
        self.args = args
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._rng = random.Random(1)
        self._clients: dict[str, Client] = {}
        config = DispatchConfig(queue_timeout_s=3600.0, request_timeout_s=3600.0, max_queued_requests=100_000)
        self._dispatchers = {model: Dispatcher(config) for model in MODELS}
        self.workers = {model: Worker(self, model, how) for model in MODELS}
        self._budget = PageBudget(args.budget_pages * PAGE_BYTES) if how == "divided" else None
        for model, worker in self.workers.items():
            self._perform(model, self._dispatchers[model].worker_joined(worker.hello, 0.0))
            worker.report()
        self._look()

    def after(self, delay_s: float, what: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.now_s + delay_s, next(self._order), what))

    def go_on(self, seconds: float) -> None:
        until_s = self.now_s + seconds
        while self._events and self._events[0][0] < until_s:
            self.now_s, _, what = heapq.heappop(self._events)
            what()
            held = sum(worker.engine.page_use().num_held for worker in self.workers.values())
            assert held <= self.args.budget_pages, f"{held} pages at {self.now_s} s"
            self.run.held_max_pages = max(self.run.held_max_pages, held)
        self.now_s = until_s

    def send(self, client: Client) -> None:
        """The next request of a client."""
        request_id = f"r{next(self._order)}"
        client.began_s, client.first_s = self.now_s, None
        self._clients[request_id] = client
        num_tokens = self._rng.randint(self.args.tokens // 2, self.args.tokens * 3 // 2)
        prompt = [self._rng.randrange(10, 1000) for _ in range(self.args.prompt)]
        sampling = SamplingParams(max_tokens=num_tokens, temperature=0.0, ignore_eos=True)
        dispatcher = self._dispatchers[client.model]
        self._perform(client.model, dispatcher.submit(GenerateRequest(request_id, prompt, sampling), self.now_s))

    def cancel_all(self) -> None:
        clients, self._clients = self._clients, {}
        for request_id, client in clients.items():
            self._perform(client.model, self._dispatchers[client.model].cancel(request_id, self.now_s))

    def hear(self, model: str, messages: Sequence[WorkerMessage]) -> None:
        dispatcher = self._dispatchers[model]
        for message in messages:
            self._perform(model, dispatcher.worker_message(self.workers[model].peer, message, self.now_s))

    def _look(self) -> None:
        if self._budget is not None:
            needs = [one for dispatcher in self._dispatchers.values() for one in dispatcher.budgeted_workers()]
            for peer, limit in self._budget.look(needs, self.now_s):
                worker = next(one for one in self.workers.values() if one.peer == peer)
                self.after(MESSAGE_S, lambda worker=worker, limit=limit: worker.hear(limit))  # type: ignore[misc]
            self.after(LOOK_S, self._look)

    def _perform(self, model: str, actions: Sequence[Action]) -> None:
        for action in actions:
            match action:
                case Send(_, message):
                    self.after(MESSAGE_S, lambda message=message: self.workers[model].hear(message))  # type: ignore[misc]
                case Emit(request_id, token_ids):
                    client = self._clients.get(request_id)
                    self.run.num_tokens[model] += len(token_ids)
                    if client is not None and client.first_s is None:
                        client.first_s = self.now_s - client.began_s
                case Finish(request_id, finish):
                    client = self._clients.pop(request_id, None)
                    if client is not None:
                        self._ended(client, finish.reason == "length")
                case _:
                    raise AssertionError(f"a worker was lost: {action}")

    def _ended(self, client: Client, is_whole: bool) -> None:
        if is_whole:
            self.run.seconds.append(self.now_s - client.began_s)
            self.run.first_s[client.model].append(client.first_s or 0.0)
        else:
            self.run.num_failed += 1
        self.after(client.pause_s, lambda: self.send(client))


class Worker:
    """An engine behind its protocol. A message is handled between two steps."""

    def __init__(self, world: World, model: str, how: How) -> None:
        args = world.args
        num_pages = args.budget_pages if how == "divided" else args.budget_pages // 2
        limits = EngineLimits(num_pages, PAGE_TOKENS, 2 * (args.prompt + args.tokens), 256, 512, 8192, 1024, (), model)
        self.engine = NativeEngine(limits, NoModel())
        self.peer = PeerId(f"{model}-0", 1)
        addresses = (TransferAddress("host", 1),)
        tickets = TicketIssuer(self.peer, addresses, 8, NUM_LAYERS, NUM_HEADS, HEAD_BYTES)
        self._protocol = WorkerProtocol.in_role("decode", self.engine, GroupTransfers([]), tickets)
        if how == "divided":
            self.engine.set_page_limit(0)
            self.engine.step()
        self.hello = Hello(
            PROTOCOL_VERSION,
            "",
            self.peer,
            "decode",
            model,
            1,
            1,
            addresses,
            PAGE_TOKENS,
            num_pages,
            limits.max_slots,
            limits.max_queued_tokens,
            limits.max_model_len,
            layout=PageLayout(NUM_LAYERS, NUM_HEADS, 32, HEAD_BYTES),
            page_limit=0 if how == "divided" else None,
        )
        self._world, self._model = world, model
        self._inbox: list[RouterMessage] = []
        self._is_busy = False

    def hear(self, message: RouterMessage) -> None:
        self._inbox.append(message)
        if not self._is_busy:
            self._turn()

    def report(self, said: Sequence[WorkerMessage] = ()) -> None:
        messages = [*said, *self._protocol.reports(self._world.now_s)]
        if messages:
            self._world.after(MESSAGE_S, lambda: self._world.hear(self._model, messages))

    def _turn(self) -> None:
        """Handles what has come, and begins a step if there is something to compute."""
        inbox, self._inbox = self._inbox, []
        said = [answer for message in inbox for answer in self._protocol.handle(message, self._world.now_s)]
        self._is_busy = self.engine.has_work
        if not self._is_busy:
            self.report(said)
            return
        if said:
            self.report(said)
        outputs = self.engine.step()
        time = self.engine.last_step_time(0.0)
        seconds = 0.0
        if time is not None:
            seconds = STEP_S + DECODE_TOKEN_S * time.num_decoding + PREFILL_TOKEN_S * time.num_prefill_tokens
        self._world.after(seconds, lambda: self._step_ended(self._protocol.role.sampled(outputs)))

    def _step_ended(self, said: Sequence[WorkerMessage]) -> None:
        self.report(said)
        self._turn()


def measure(how: How, busy: str, demand: float, args: argparse.Namespace) -> dict[str, object]:
    world = World(how, args)
    of_request = -(-(args.prompt + args.tokens) // PAGE_TOKENS)
    number = max(round(demand * args.budget_pages / of_request), 2)
    clients = {
        "one": [Client("chat")] * number,
        "both": [Client(model) for model in MODELS for _ in range(number // 2)],
        "beside": [*([Client("chat")] * number), Client("code", PAUSE_S)],
    }[busy]
    for at, client in enumerate(clients):
        one = Client(client.model, client.pause_s)
        world.after(args.ramp_s * at / len(clients), lambda one=one: world.send(one))  # type: ignore[misc]
    world.go_on(args.warm_up)
    world.run = Run()
    before = {model: worker.engine.stats().total_preemptions for model, worker in world.workers.items()}
    computed = {model: worker.engine.stats().total_computed_tokens for model, worker in world.workers.items()}
    world.go_on(args.seconds)
    run, engines = world.run, {model: worker.engine for model, worker in world.workers.items()}
    world.cancel_all()
    world.go_on(5.0)
    for engine in engines.values():
        engine.check_integrity()
        assert engine.page_use().num_used == 0, "a page was not given back"
    num_preemptions = sum(engine.stats().total_preemptions - before[model] for model, engine in engines.items())
    num_computed = sum(engine.stats().total_computed_tokens - computed[model] for model, engine in engines.items())
    return {
        "memory": how,
        "busy": busy,
        "demand": demand,
        "clients": len(clients),
        **{f"{model}_tokens_per_s": round(run.num_tokens[model] / args.seconds) for model in MODELS},
        "requests": len(run.seconds),
        "failed": run.num_failed,
        "latency_p50_s": round(percentile(run.seconds, 0.5), 2),
        "latency_p99_s": round(percentile(run.seconds, 0.99), 2),
        **{
            f"{model}_ttft_{name}_s": round(percentile(run.first_s[model], share), 3)
            for model in MODELS
            for name, share in (("p50", 0.5), ("p99", 0.99))
            if run.first_s[model]
        },
        "preemptions": num_preemptions,
        "computed_tokens": num_computed,
        "held_max_pages": run.held_max_pages,
        "budget_pages": args.budget_pages,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--demand", type=float, nargs="+", default=[1, 2, 5, 10])
    parser.add_argument("--busy", nargs="+", choices=("one", "both", "beside"), default=["one", "both", "beside"])
    parser.add_argument("--how", nargs="+", choices=("divided", "halves"), default=["divided", "halves"])
    parser.add_argument("--budget-pages", type=int, default=256)
    parser.add_argument("--prompt", type=int, default=128, help="tokens")
    parser.add_argument("--tokens", type=int, default=64, help="of an answer on average")
    parser.add_argument("--warm-up", type=float, default=5.0, help="virtual seconds before each measurement")
    parser.add_argument("--seconds", type=float, default=60.0, help="virtual, of each measurement")
    parser.add_argument("--ramp-s", type=float, default=1.0, help="in which the clients begin")
    args = parser.parse_args()
    for how, busy, demand in itertools.product(args.how, args.busy, args.demand):
        print(json.dumps(measure(how, busy, demand, args)), flush=True)


if __name__ == "__main__":
    main()
