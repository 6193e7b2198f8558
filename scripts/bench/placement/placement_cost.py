"""What one placement costs the router, in microseconds of one core.

    python scripts/bench/placement/placement_cost.py

Workers have measured times, streams and queues; each request is another one, as none is asked for twice.
"""

from __future__ import annotations

import statistics
import time
from typing import get_args

from slipstream.kv_transfer.api.ticket import PeerId, TransferAddress
from slipstream.router.config.router_config import DispatchConfig, PolicyName
from slipstream.router.placement.placed_request import PlacedRequests
from slipstream.router.placement.placer import Placer
from slipstream.router.placement.prefix.index import PrefixIndex
from slipstream.router.placement.prefix.sessions import Sessions
from slipstream.router.protocol.generation import Deadline, GenerateRequest, Levels
from slipstream.router.protocol.messages import (
    PROTOCOL_VERSION,
    Credits,
    Hello,
    Role,
    SamplingParams,
    StepTime,
    pack_ids,
)
from slipstream.router.registry.worker_load import PendingPrefill
from slipstream.router.registry.worker_registry import WorkerRegistry, WorkerState
from slipstream.router.requests.placement_decision import Placement
from slipstream.router.requests.request_state import RequestState

NUM_REQUESTS = 500


def joined(role: Role, number: int) -> WorkerState:
    hello = Hello(
        version=PROTOCOL_VERSION,
        token="",
        worker=PeerId(f"{role}-{number}", 1),
        role=role,
        model="m",
        tp=1,
        pid=1,
        addresses=(TransferAddress("127.0.0.1", 1),),
        page_tokens=16,
        num_pages=16_384,
        max_slots=256,
        max_queued_tokens=65_536,
        max_model_len=32_768,
    )
    worker = WorkerState(hello, 0.0)
    worker.ledger.report(Credits(0, 200 - number % 50, 12_000 - number % 100, 60_000 - number % 70))
    for _ in range(5 + number % 8):
        if role == "decode":
            worker.load.add_sequence(700, 120.0)
            worker.load.num_running += 1
        else:
            worker.load.begin_prefill(PendingPrefill(500 + number % 70, 250_000.0, 0.05, 0.1, 0.0))
    return worker


def microseconds(policy: PolicyName, num_a_side: int) -> tuple[float, float]:
    """Medians of the choice, and of the bookkeeping when it is taken."""
    registry, index, sessions = WorkerRegistry(), PrefixIndex(), Sessions()
    sides: tuple[Role, ...] = ("decode", "prefill")
    for role in sides:
        for number in range(num_a_side):
            worker = joined(role, number)
            registry.add(worker)
            index.add(worker)
            for at in range(20):
                worker.times.observe_step(StepTime(0, 0, 1 + at, 700 * (1 + at), 0.01 + 1e-4 * at))
                worker.times.observe_step(StepTime(50 + 50 * at, 25 * at, 0, 0, 0.005 + 5e-3 * at))
    placer = Placer(DispatchConfig(policy=policy), registry, index, sessions, PlacedRequests())
    choosing, taking = [], []
    for number in range(NUM_REQUESTS):
        prompt = pack_ids(range(number, number + 300 + 17 * (number % 50)))
        request = GenerateRequest(f"r{number}", prompt, SamplingParams(max_tokens=500), session=f"s{number % 40}")
        state = RequestState.of(request, prompt, Levels(0.5, 0.05), Deadline("request_timeout_s", 600.0), 1.0)
        index.cached_tokens(registry.decode_workers[0], state)  # hashing the prompt is not what is measured
        began = time.perf_counter()
        found = placer.place(state, 1.0)
        chosen = time.perf_counter()
        assert isinstance(found, Placement)
        placer.begin(state, found, 1.0)
        choosing.append(chosen - began)
        taking.append(time.perf_counter() - chosen)
    return statistics.median(choosing) * 1e6, statistics.median(taking) * 1e6


def main() -> None:
    sizes = (2, 8, 32, 500)
    print("policy        | " + " | ".join(f"{n} + {n} workers" for n in sizes) + "   (choice + bookkeeping, us)")
    for policy in get_args(PolicyName):
        cells = ["{:.0f} + {:.0f}".format(*microseconds(policy, n)) for n in sizes]
        print(f"{policy:13} | " + " | ".join(cell.rjust(12) for cell in cells))


if __name__ == "__main__":
    main()
