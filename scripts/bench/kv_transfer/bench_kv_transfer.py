#!/usr/bin/env python3
"""Measure KV page transfer between two processes: scattered pages to scattered pages, checksums on.

    python scripts/bench/kv_transfer/bench_kv_transfer.py [--rounds 3] [--repeats 7] [--ways shared_memory,ucx]
    [--nixl-python PATH]

Prints GB/s (1e9 bytes of pages a second, from `send` to verified and in place) and CPU seconds per GB of each side's
process, medians over all repeats of all rounds. The pages hold random bytes, and every run is compared afterwards. The
pools are made like a worker's with that `kv_transfer.transport`: in huge pages, private or shared. In a round every way
has its turn; *memory copy* is one thread that copies the same pages from one private pool to another, without
checksums. With `--nixl-python`, a Python that has `nixl` and `numpy` installed, NIXL moves the same pages in the same
run, as it comes and in its best configuration.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import resource
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from queue import SimpleQueue

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

import numpy as np

from slipstream.kv_transfer.agent import TransferAgent
from slipstream.kv_transfer.api.ticket import HandoffTicket, PeerId
from slipstream.kv_transfer.api.transfer_config import TransferConfig
from slipstream.kv_transfer.api.transfer_events import Received, Sent, TransferEvent
from slipstream.kv_transfer.memory.host_pages import HostPagePool
from slipstream.kv_transfer.memory.pool_memory import PoolMemory

SOURCE, DESTINATION = PeerId("prefill", 1), PeerId("decode", 1)
NIXL = Path(__file__).with_name("bench_kv_nixl.py")
OUR_WAYS = {"auto", "shared_memory", "ucx", "nccl"}
MEMORY_COPY = "memory copy"
NIXL_WAYS = {"NIXL default": "default", "NIXL best": "best"}


@dataclass(frozen=True)
class Case:
    name: str
    num_layers: int
    num_pages: int  # of the transfer; the pool has twice as many
    num_heads: int
    head_bytes: int

    @property
    def page_bytes(self) -> int:
        return self.num_heads * self.head_bytes

    @property
    def gigabytes(self) -> float:
        return self.num_layers * self.num_pages * self.page_bytes / 1e9


CASES = (
    Case("16 KiB x 64 x 32 layers, 32 MiB", 32, 64, 8, 2048),
    Case("16 KiB x 512 x 32 layers, 256 MiB", 32, 512, 8, 2048),
    Case("64 KiB x 128 x 32 layers, 256 MiB", 32, 128, 8, 8192),
    Case("64 KiB x 16 x 32 layers, 32 MiB", 32, 16, 8, 8192),
)


@dataclass
class Figures:
    """One entry a repeat."""

    rates: list[float] = field(default_factory=list)  # GB/s
    sending: list[float] = field(default_factory=list)  # CPU s per GB
    receiving: list[float] = field(default_factory=list)

    def extend(self, other: Figures) -> None:
        self.rates += other.rates
        self.sending += other.sending
        self.receiving += other.receiving

    def __str__(self) -> str:
        return (
            f"{statistics.median(self.rates):6.2f} GB/s ({min(self.rates):5.2f} to {max(self.rates):5.2f})  "
            f"CPU s per GB: {statistics.median(self.sending):.3f} sending, "
            f"{statistics.median(self.receiving):.3f} receiving"
        )


Events = SimpleQueue[tuple[float, TransferEvent]]


def cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def open_pool(case: Case, seed: int, is_shared: bool) -> tuple[PoolMemory, np.ndarray, list[int]]:
    """A pool of random bytes, and those of its pages that take part."""
    generator = np.random.default_rng(seed)
    shape = (case.num_layers, 2 * case.num_pages, case.num_heads, case.head_bytes)
    memory = PoolMemory(math.prod(shape), is_shared=is_shared)
    memory.take()
    array = memory.buffer.reshape(shape)
    array.reshape(-1).view(np.uint64)[:] = generator.integers(0, 1 << 64, array.size // 8, np.uint64)
    return memory, array, generator.permutation(2 * case.num_pages)[: case.num_pages].tolist()


def open_end(case: Case, peer: PeerId, config: TransferConfig) -> tuple[TransferAgent, np.ndarray, Events, list[int]]:
    memory, array, page_ids = open_pool(case, len(peer.name), config.transport != "ucx")
    events: Events = SimpleQueue()
    agent = TransferAgent(
        HostPagePool(array, memory),
        rank=0,
        tp=1,
        peer=peer,
        config=config,
        on_event=lambda event: events.put((time.perf_counter(), event)),
    )
    return agent, array, events, page_ids


def sum_of(array: np.ndarray, page_ids: list[int]) -> int:
    return int(array.view(np.uint64)[:, page_ids].sum())  # modulo 2**64


def send_side(connection: Connection, case: Case, config: TransferConfig) -> None:
    agent, array, events, page_ids = open_end(case, SOURCE, config)
    connection.send(sum_of(array, page_ids))
    while (ticket := connection.recv()) is not None:
        cpu, began = cpu_s(), time.perf_counter()
        agent.send(ticket, page_ids, case.num_pages)
        _, event = events.get()
        assert isinstance(event, Sent), event
        connection.send((began, cpu_s() - cpu))
    agent.close()


def run(case: Case, config: TransferConfig, repeats: int) -> Figures:
    context = multiprocessing.get_context("spawn")
    connection, theirs = context.Pipe()
    sender = context.Process(target=send_side, args=(theirs, case, config))
    sender.start()
    agent, array, events, page_ids = open_end(case, DESTINATION, config)
    expected = connection.recv()
    figures = Figures()
    for transfer_id in range(repeats + 1):
        array[:, page_ids] = 0
        ticket = HandoffTicket(
            transfer_id,
            DESTINATION,
            (agent.address,),
            0,
            case.num_pages,
            config.slab_pages,
            case.num_layers,
            case.num_heads,
            case.head_bytes,
        )
        cpu = cpu_s()
        agent.expect(ticket, page_ids, SOURCE, 1)
        connection.send(ticket)
        ended, event = events.get()  # `perf_counter` is the same clock in both processes
        cpu = cpu_s() - cpu
        assert isinstance(event, Received), event
        began, sender_cpu = connection.recv()
        assert sum_of(array, page_ids) == expected, "the pages are not the same"
        if transfer_id:  # the first one connects and touches the memory
            figures.rates.append(case.gigabytes / (ended - began))
            figures.sending.append(sender_cpu / case.gigabytes)
            figures.receiving.append(cpu / case.gigabytes)
    connection.send(None)
    sender.join()
    agent.close()
    return figures


def run_memory_copy(case: Case, repeats: int) -> Figures:
    _, source, source_ids = open_pool(case, 1, False)
    _, to, ids = open_pool(case, 2, False)
    pages, to_pages = (array.reshape(*array.shape[:2], -1) for array in (source, to))
    figures = Figures()
    for _ in range(repeats):
        to[:, ids] = 0
        cpu, began = cpu_s(), time.perf_counter()
        for layer, to_layer in zip(pages, to_pages, strict=True):
            for source_id, page_id in zip(source_ids, ids, strict=True):
                to_layer[page_id] = layer[source_id]
        figures.rates.append(case.gigabytes / (time.perf_counter() - began))
        figures.sending.append(0.0)
        figures.receiving.append((cpu_s() - cpu) / case.gigabytes)
    return figures


def run_nixl(case: Case, python: str, way: str, repeats: int) -> Figures:
    arguments = [case.num_layers, case.num_pages, case.page_bytes, repeats, way]
    done = subprocess.run([python, str(NIXL), *map(str, arguments)], capture_output=True, text=True, check=True)
    return Figures(**json.loads(done.stdout.splitlines()[-1]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--ways", default="shared_memory,ucx", help="values of kv_transfer.transport")
    parser.add_argument("--nixl-python", help="a Python with nixl and numpy")
    parser.add_argument("--tls", default=TransferConfig().tls, help="UCX transports")
    parser.add_argument("--slab-pages", type=int, default=TransferConfig().slab_pages)
    parser.add_argument("--case", type=int, choices=range(len(CASES)), help="only this one")
    options = parser.parse_args()
    ours = [way for way in options.ways.split(",") if way]
    if unknown := set(ours) - OUR_WAYS:
        parser.error(f"--ways: {', '.join(sorted(unknown))} is none of {', '.join(sorted(OUR_WAYS))}")
    ways = ours + [MEMORY_COPY] + (list(NIXL_WAYS) if options.nixl_python else [])
    for case in CASES if options.case is None else [CASES[options.case]]:
        figures = {way: Figures() for way in ways}
        for _ in range(options.rounds):
            for way in ways:
                if way in NIXL_WAYS:
                    figures[way].extend(run_nixl(case, options.nixl_python, NIXL_WAYS[way], options.repeats))
                elif way == MEMORY_COPY:
                    figures[way].extend(run_memory_copy(case, options.repeats))
                else:
                    config = TransferConfig(transport=way, tls=options.tls, slab_pages=options.slab_pages)
                    figures[way].extend(run(case, config, options.repeats))
        for way in ways:
            print(f"{case.name:34} {way:14} {figures[way]}", flush=True)


if __name__ == "__main__":
    main()
