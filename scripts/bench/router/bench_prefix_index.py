"""What the prefix index costs the router: microseconds a request, bytes an entry.

    .venv/bin/python scripts/bench/router/bench_prefix_index.py

A request is hashed and looked up, expected at a prefill and a decode worker, and then reported by both in one message;
half of its prompt is known from an earlier one. Nothing else runs: no sockets, no HTTP.
"""

from __future__ import annotations

import gc
import random
import time
import tracemalloc
from array import array

from slipstream.kv_transfer.api.ticket import PeerId, TransferAddress
from slipstream.router.placement.prefix.index import PrefixIndex, hash_pages
from slipstream.router.protocol.block_hash import BlockChain
from slipstream.router.protocol.generation import Deadline, GenerateRequest, Levels
from slipstream.router.protocol.messages import PROTOCOL_VERSION, BlocksChanged, Hello, Role, SamplingParams, pack_ids
from slipstream.router.registry.worker_registry import WorkerState
from slipstream.router.requests.request_state import RequestState

PAGE_TOKENS, NUM_PAGES = 16, 65_536
STEPS = ("hash", "find", "find again", "expect", "reported", "removed")


def worker(name: str, role: Role) -> WorkerState:
    hello = Hello(
        version=PROTOCOL_VERSION,
        token="",
        worker=PeerId(name, 1),
        role=role,
        model="m",
        tp=1,
        pid=1,
        addresses=(TransferAddress("h", 1),),
        page_tokens=PAGE_TOKENS,
        num_pages=NUM_PAGES,
        max_slots=256,
        max_queued_tokens=65_536,
        max_model_len=131_072,
    )
    return WorkerState(hello, 0.0)


def request(request_id: str, prompt: list[int]) -> RequestState:
    packed = pack_ids(prompt)
    asked = GenerateRequest(request_id, packed, SamplingParams(max_tokens=16))
    return RequestState.of(asked, packed, Levels(0.5, 0.05), Deadline("request_timeout_s", 600.0), 0.0)


def cost_of_requests(num_tokens: int, num_workers: int, num_requests: int) -> dict[str, float]:
    """Mean microseconds of each step."""
    rng = random.Random(1)
    chains: dict[str, BlockChain] = {}
    index = PrefixIndex(name_pages=lambda state, hello: chains[state.request_id])
    prefills = [worker(f"p{i}", "prefill") for i in range(num_workers)]
    decodes = [worker(f"d{i}", "decode") for i in range(num_workers)]
    seqs = dict.fromkeys((*prefills, *decodes), 0)
    for one in seqs:
        index.add(one)
    spent = dict.fromkeys(STEPS, 0.0)
    beginnings = [[rng.randrange(50_000) for _ in range(num_tokens // 2)] for _ in range(32)]
    now = 0.0
    for number in range(num_requests + 64):
        if number == 64:
            spent = dict.fromkeys(STEPS, 0.0)
        state = request(
            f"r{number}",
            [*rng.choice(beginnings), *(rng.randrange(50_000) for _ in range(num_tokens - num_tokens // 2))],
        )
        now += 0.001
        pair = rng.choice(prefills), rng.choice(decodes)
        times = [time.perf_counter()]
        chain = chains[state.request_id] = hash_pages(state, prefills[0].hello)
        chain.extend(state.prompt_ids)
        times.append(time.perf_counter())
        index.expire(now)
        index.best(state, "prefill", 16)
        index.best(state, "decode", 16)
        times.append(time.perf_counter())
        for one in (*prefills[:16], *decodes[:16]):
            index.cached_tokens(one, state)
        times.append(time.perf_counter())
        for one in pair:
            index.expect(one, state, now)
        times.append(time.perf_counter())
        packed = array("Q", chain.ids).tobytes()
        for stored, removed in ((packed, b""), (b"", packed[len(packed) // 2 :])):
            for one in pair:
                seqs[one] += 1
                index.apply(one, BlocksChanged(seqs[one], False, stored, removed))
            times.append(time.perf_counter())
        for step, begin_s, end_s in zip(STEPS, times, times[1:], strict=False):
            spent[step] += end_s - begin_s
    index.check_integrity()
    return {step: seconds / num_requests * 1e6 for step, seconds in spent.items()}


def size_of_a_worker() -> tuple[float, float]:
    """Bytes an entry, and microseconds that its loss takes at once, of a worker with all its pages known."""
    index, one = PrefixIndex(), worker("d", "decode")
    index.add(one)
    rng = random.Random(2)
    packed = array("Q", [rng.getrandbits(64) for _ in range(NUM_PAGES)]).tobytes()
    gc.collect()
    tracemalloc.start()
    index.apply(one, BlocksChanged(1, True, packed, b""))
    num_bytes = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    begin_s = time.perf_counter()
    index.remove(one)
    return num_bytes / NUM_PAGES, (time.perf_counter() - begin_s) * 1e6


def main() -> None:
    print(f"{'tokens':>7} {'workers':>8} " + " ".join(f"{step:>11}" for step in STEPS) + "   us a request")
    for num_tokens, num_requests in ((128, 4000), (1024, 1500), (8192, 300)):
        for num_workers in (2, 500):
            spent = cost_of_requests(num_tokens, num_workers, num_requests)
            print(f"{num_tokens:>7} {2 * num_workers:>8} " + " ".join(f"{spent[step]:>11.1f}" for step in STEPS))
    entry_bytes, forget_us = size_of_a_worker()
    print(f"an entry takes {entry_bytes:.0f} bytes; an event of a lost worker {forget_us:.0f} us")


if __name__ == "__main__":
    main()
