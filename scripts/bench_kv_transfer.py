#!/usr/bin/env python3
"""Measure KV page transfer between two processes: scattered pages to scattered pages, checksums on.

    python scripts/bench_kv_transfer.py [--repeats 15] [--tls posix,self,tcp]

Prints GB/s (1e9 bytes of pages a second, from send to verified and in place) and CPU seconds per GB of each side's
transfer thread, medians over the repeats. The pages hold random bytes, and every run is compared afterwards.
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import statistics
import sys
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from queue import SimpleQueue

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np

from slipstream.kv_transfer.agent import TransferAgent
from slipstream.kv_transfer.config import TransferConfig
from slipstream.kv_transfer.events import Received, Sent, TransferEvent
from slipstream.kv_transfer.pool import HostPagePool
from slipstream.kv_transfer.ticket import HandoffTicket, PeerId

SOURCE, DESTINATION = PeerId("prefill", 1), PeerId("decode", 1)


@dataclass(frozen=True)
class Case:
    name: str
    num_layers: int
    num_pages: int  # of the transfer; the pool has four times as many
    num_heads: int
    head_bytes: int

    @property
    def num_bytes(self) -> int:
        return self.num_layers * self.num_pages * self.num_heads * self.head_bytes


CASES = (
    Case("16 KiB pages, 32 layers x 64 pages", 32, 64, 8, 2048),
    Case("16 KiB pages, 32 layers x 512 pages", 32, 512, 8, 2048),
    Case("64 KiB pages, 32 layers x 128 pages", 32, 128, 8, 8192),
)


def cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def open_end(
    case: Case, peer: PeerId, tls: str
) -> tuple[TransferAgent, np.ndarray, SimpleQueue[TransferEvent], list[int]]:
    generator = np.random.default_rng(peer.epoch + len(peer.name))
    array = generator.integers(0, 256, (case.num_layers, 4 * case.num_pages, case.num_heads, case.head_bytes), np.uint8)
    events: SimpleQueue[TransferEvent] = SimpleQueue()
    config = TransferConfig(tls=tls)
    agent = TransferAgent(HostPagePool(array), rank=0, tp=1, peer=peer, config=config, on_event=events.put)
    page_ids = generator.permutation(4 * case.num_pages)[: case.num_pages].tolist()
    return agent, array, events, page_ids


def send_side(connection: Connection, case: Case, tls: str) -> None:
    agent, array, events, page_ids = open_end(case, SOURCE, tls)
    connection.send(array[:, page_ids].sum(dtype=np.uint64))
    while (ticket := connection.recv()) is not None:
        began = cpu_s()
        key = agent.send(ticket, page_ids)
        for layer in range(case.num_layers):
            agent.pages_ready(key, layer, case.num_pages)
        event = events.get()
        assert isinstance(event, Sent), event
        connection.send(cpu_s() - began)
    agent.close()


def run(case: Case, tls: str, repeats: int, slab_pages: int) -> None:
    context = multiprocessing.get_context("spawn")
    connection, theirs = context.Pipe()
    sender = context.Process(target=send_side, args=(theirs, case, tls))
    sender.start()
    agent, array, events, page_ids = open_end(case, DESTINATION, tls)
    expected = connection.recv()
    rates, sending, receiving = [], [], []
    for transfer_id in range(repeats + 1):
        array[:, page_ids] = 0
        ticket = HandoffTicket(
            transfer_id,
            DESTINATION,
            (agent.address,),
            0,
            case.num_pages,
            slab_pages,
            case.num_layers,
            case.num_heads,
            case.head_bytes,
        )
        cpu, began = cpu_s(), time.perf_counter()
        agent.expect(ticket, page_ids, SOURCE, 1)
        connection.send(ticket)
        event = events.get()
        seconds, cpu = time.perf_counter() - began, cpu_s() - cpu
        assert isinstance(event, Received), event
        sender_cpu = connection.recv()
        assert array[:, page_ids].sum(dtype=np.uint64) == expected, "the pages are not the same"
        if transfer_id:  # the first one connects and touches the staging memory
            gigabytes = case.num_bytes / 1e9
            rates.append(gigabytes / seconds)
            sending.append(sender_cpu / gigabytes)
            receiving.append(cpu / gigabytes)
    connection.send(None)
    sender.join()
    agent.close()
    print(
        f"{case.name:40} {case.num_bytes / 2**20:6.0f} MiB  {statistics.median(rates):5.2f} GB/s "
        f"({min(rates):.2f} to {max(rates):.2f})  CPU s per GB: {statistics.median(sending):.3f} sending, "
        f"{statistics.median(receiving):.3f} receiving",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--tls", default=TransferConfig().tls, help="UCX transports")
    parser.add_argument("--slab-pages", type=int, default=TransferConfig().slab_pages)
    options = parser.parse_args()
    for case in CASES:
        run(case, options.tls, options.repeats, options.slab_pages)


if __name__ == "__main__":
    main()
