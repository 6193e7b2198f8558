"""Do agents find their pages again after a tool? Kept for the predicted time, beside plain LRU, on the real engine.

    python scripts/bench/retention/bench_retention.py
    python scripts/bench/retention/bench_retention.py --sessions 40 --pages 1000 --seeds 0 1 2

The production dispatcher, worker protocol and engine with the demo model in one process. Time is virtual: a step takes
the CPU seconds that it took, and pauses take none, so that other work on the machine changes nothing. Sessions, lengths
and pauses are those of `cluster.tools.workload.agents`, scaled by `LENGTHS` and `PAUSES`: the demo model on a CPU
computes a fortieth of a prompt in about a fiftieth of the time that a GPU takes for a whole one.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count, islice
from pathlib import Path
from statistics import mean, quantiles

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT))

from slipstream.cluster.tools.workload.agents import AgentMix  # noqa: E402
from slipstream.cluster.tools.workload.arrival import Arrival  # noqa: E402
from slipstream.kv_transfer.api.ticket import HandoffTicket, PeerId, TransferAddress, TransferKey  # noqa: E402
from slipstream.router.config.router_config import DispatchConfig, RetentionConfig  # noqa: E402
from slipstream.router.dispatch.dispatcher import Dispatcher  # noqa: E402
from slipstream.router.dispatch.table.actions import Action, Emit, Finish, Send  # noqa: E402
from slipstream.router.protocol.generation import GenerateRequest, Retention  # noqa: E402
from slipstream.router.protocol.messages import PROTOCOL_VERSION, Hello, SamplingParams, WorkerMessage  # noqa: E402
from slipstream.workers.config.worker_config import EngineConfig  # noqa: E402
from slipstream.workers.engine.engine_builder import build_runner, engine_limits  # noqa: E402
from slipstream.workers.engine.native_engine import NativeEngine  # noqa: E402
from slipstream.workers.interface.engine import Reservation  # noqa: E402
from slipstream.workers.roles.worker_protocol import WorkerProtocol  # noqa: E402
from slipstream.workers.transfers.ticket_issuer import TicketIssuer  # noqa: E402

DEMO = ROOT / "models" / "slipstream-demo"
PEER = PeerId("decode-0", 1)
LENGTHS, PAUSES = 1 / 40, 1 / 50
MOST_TOKENS = 3600
VOCAB = 200


class NoTransfers:
    """A worker alone sends and receives no pages."""

    num_active = total_checksum_failures = 0

    def knows(self, transfer: TransferKey) -> bool:
        return False

    def expect(self, ticket: HandoffTicket, reservation: Reservation, source: PeerId, source_tp: int) -> None: ...
    def send(self, ticket: HandoffTicket, page_ids: Sequence[int]) -> None: ...
    def cancel(self, transfer: TransferKey) -> None: ...
    def peer_lost(self, peer: PeerId) -> None: ...


@dataclass(slots=True)
class Turn:
    """One request. `tokens` are its prompt, and its answer at the end."""

    arrival: Arrival
    tokens: array[int]
    arrived_s: float = 0.0
    ttft_s: float | None = None


@dataclass(slots=True)
class Agents:
    """The clients, the router and the worker."""

    dispatcher: Dispatcher
    engine: NativeEngine
    worker: WorkerProtocol
    now_s: float = 0.0
    events: list[tuple[float, int, Turn]] = field(default_factory=list)
    running: dict[str, Turn] = field(default_factory=dict)
    ttft_s: list[float] = field(default_factory=list)
    num_prompt: int = 0
    num_cached: int = 0
    _numbers: count[int] = field(default_factory=count)
    _shared: list[int] = field(default_factory=lambda: random.Random(1).choices(range(3, VOCAB), k=4000))

    def run(self, sessions: Sequence[Arrival]) -> None:
        for first in sessions:
            own = random.Random(first.session).choices(range(3, VOCAB), k=scaled(first.input_length))
            num_shared = scaled(AgentMix().shared_tokens)
            tokens = array("i", [*self._shared[:num_shared], *own[num_shared:]])
            heappush(self.events, (first.at_s * PAUSES, next(self._numbers), Turn(first, tokens)))
        while self.events or self.running:
            if not self.engine.has_work:
                self.now_s = max(self.now_s, self.events[0][0])
            while self.events and self.events[0][0] <= self.now_s:
                self._arrive(heappop(self.events)[2])
            began_s = time.process_time()
            chunks = self.engine.step()
            self.now_s += time.process_time() - began_s
            self._hear([*self.worker.role.sampled(chunks), *self.worker.reports(self.now_s)])

    def _arrive(self, turn: Turn) -> None:
        request_id = f"r{next(self._numbers)}"
        turn.arrived_s = self.now_s
        self.running[request_id] = turn
        sampling = SamplingParams(max(scaled(turn.arrival.output_length), 1), temperature=0.0, ignore_eos=True)
        request = GenerateRequest(request_id, turn.tokens.tobytes(), sampling, retention=Retention())
        self._perform(self.dispatcher.submit(request, self.now_s))

    def _hear(self, messages: Sequence[WorkerMessage]) -> None:
        for message in messages:
            self._perform(self.dispatcher.worker_message(PEER, message, self.now_s))

    def _perform(self, actions: Sequence[Action]) -> None:
        for action in actions:
            match action:
                case Send(_, message):
                    self._hear(self.worker.handle(message, self.now_s))
                case Emit(request_id, token_ids):
                    turn = self.running[request_id]
                    turn.tokens.extend(token_ids)
                    if turn.ttft_s is None:
                        turn.ttft_s = self.now_s - turn.arrived_s
                case Finish(request_id, finish):
                    turn = self.running.pop(request_id)
                    assert turn.ttft_s is not None, finish
                    self.ttft_s.append(turn.ttft_s)
                    self.num_prompt += finish.usage.num_prompt_tokens
                    self.num_cached += finish.usage.num_cached_tokens
                    self._perform(self.dispatcher.turn_ended(request_id, turn.arrival.tools or (), self.now_s))
                    self._pause(turn)

    def _pause(self, turn: Turn) -> None:
        following = turn.arrival.then
        if following is None:
            return
        num_new = max(scaled(following.input_length) - len(turn.tokens), 1)
        if len(turn.tokens) + num_new > MOST_TOKENS:
            return
        own = random.Random(f"{following.session} {following.input_length}").choices(range(3, VOCAB), k=num_new)
        turn.tokens.extend(own)
        heappush(self.events, (self.now_s + following.at_s * PAUSES, next(self._numbers), Turn(following, turn.tokens)))


def scaled(num_tokens: int) -> int:
    return round(num_tokens * LENGTHS)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sessions", type=int, default=30)
    parser.add_argument("--rate", type=float, default=0.04, help="sessions a second, before pauses are scaled")
    parser.add_argument("--pages", type=int, default=1200)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    given = parser.parse_args()
    print("          seed requests  cached   TTFT mean     p50     p90     p99 ms  pages")
    for seed in given.seeds:
        sessions = list(islice(AgentMix(given.rate).arrivals(seed), given.sessions))
        for name, enabled in (("LRU", False), ("retention", True)):
            agents = agents_of(given.pages, enabled)
            agents.run(sessions)
            agents.engine.check_integrity()
            cuts, counts = quantiles(agents.ttft_s, n=100), agents.engine.prefix_cache.order.counts
            times = " ".join(f"{1e3 * value:7.1f}" for value in (mean(agents.ttft_s), cuts[49], cuts[89], cuts[98]))
            held = f"{counts.hits} used, {counts.expired} expired, {counts.displaced} displaced"
            share = agents.num_cached / agents.num_prompt
            print(f"{name:>9} {seed:>4} {len(agents.ttft_s):>8} {share:7.4f}     {times}     {held}", flush=True)


def agents_of(num_pages: int, enabled: bool) -> Agents:
    config = EngineConfig(num_pages=num_pages, max_model_len=4096, num_threads=1)
    limits = engine_limits(DEMO, config)
    engine = NativeEngine(limits, build_runner(DEMO, config, num_pages))
    tickets = TicketIssuer(PEER, (TransferAddress("none", 1),), 1, 1, 1, 1)
    worker = WorkerProtocol.in_role("decode", engine, NoTransfers(), tickets)
    dispatcher = Dispatcher(DispatchConfig(retention=RetentionConfig(enabled=enabled)))
    hello = Hello(
        version=PROTOCOL_VERSION,
        token="",
        worker=PEER,
        role="decode",
        model=limits.model_id,
        tp=1,
        pid=1,
        addresses=(TransferAddress("none", 1),),
        page_tokens=limits.page_tokens,
        num_pages=num_pages,
        max_slots=limits.max_slots,
        max_queued_tokens=limits.max_queued_tokens,
        max_model_len=limits.max_model_len,
        max_step_tokens=limits.max_step_tokens,
    )
    dispatcher.worker_joined(hello, 0.0)
    agents = Agents(dispatcher, engine, worker)
    for message in worker.reports(0.0):
        dispatcher.worker_message(PEER, message, 0.0)
    return agents


if __name__ == "__main__":
    main()
