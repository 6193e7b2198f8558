#!/usr/bin/env python3
"""The same transfer as `bench_kv_transfer.py`, done by NIXL; run by it with a Python that has `nixl` and `numpy`.

    python scripts/bench/kv_transfer/bench_kv_nixl.py NUM_LAYERS NUM_PAGES PAGE_BYTES REPEATS default|best

One process owns a pool, another reads scattered pages of it into scattered pages of its own, through descriptor lists
prepared beforehand. `default` is an agent as it is made. `best` has no progress thread, its owner polls, and UCX does
not watch the peer, which lets one process read the other's memory (and die with it). No checksum: NIXL has none. Every
run is compared afterwards. Prints a line of JSON: GB/s of every repeat and CPU seconds per GB of the reading and of
the owning process.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import resource
import time
from multiprocessing.connection import Connection

import numpy as np
from nixl import nixl_agent, nixl_agent_config

Pool = tuple["nixl_agent", np.ndarray, list[tuple[int, int, int]], np.ndarray]


def cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def open_pool(name: str, options: argparse.Namespace, seed: int) -> Pool:
    """An agent with a registered pool of twice the pages, and the pages that take part, as descriptors."""
    generator = np.random.default_rng(seed)
    shape = (options.num_layers, 2 * options.num_pages, options.page_bytes)
    array = generator.integers(0, 1 << 64, math.prod(shape) // 8, np.uint64).view(np.uint8).reshape(shape)
    page_ids = generator.permutation(shape[1])[: options.num_pages]
    is_best = options.way == "best"
    agent = nixl_agent(name, nixl_agent_config(enable_prog_thread=not is_best, backends=[] if is_best else ["UCX"]))
    if is_best:
        agent.create_backend("UCX", {"ucx_error_handling_mode": "none"})
    agent.register_memory([(array.ctypes.data, array.nbytes, 0, "pool")], "DRAM")
    descriptors = [
        (array.ctypes.data + (layer * shape[1] + int(page)) * options.page_bytes, options.page_bytes, 0)
        for layer in range(options.num_layers)
        for page in page_ids
    ]
    return agent, array, descriptors, page_ids


def sum_of(array: np.ndarray, page_ids: np.ndarray) -> int:
    return int(array.view(np.uint64)[:, page_ids].sum())  # modulo 2**64


def own(connection: Connection, options: argparse.Namespace) -> None:
    agent, array, descriptors, page_ids = open_pool("owner", options, 1)
    connection.send((agent.get_agent_metadata(), descriptors, sum_of(array, page_ids)))
    while connection.recv():
        began = cpu_s()
        connection.send(None)
        # Without a progress thread the owner has to call NIXL for its end of the work to be done.
        while not any(agent.get_new_notifs().values()):
            pass
        connection.send(cpu_s() - began)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("num_layers", "num_pages", "page_bytes", "repeats"):
        parser.add_argument(name, type=int)
    parser.add_argument("way", choices=["default", "best"])
    options = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    connection, theirs = context.Pipe()
    owner = context.Process(target=own, args=(theirs, options))
    owner.start()
    agent, array, descriptors, page_ids = open_pool("reader", options, 2)
    metadata, their_descriptors, expected = connection.recv()
    peer = agent.add_remote_agent(metadata)
    local = agent.prep_xfer_dlist("", descriptors, "DRAM")
    remote = agent.prep_xfer_dlist(peer, their_descriptors, "DRAM")
    indices = np.arange(len(descriptors), dtype=np.int32)
    gigabytes = len(descriptors) * options.page_bytes / 1e9
    rates, reading, owning = [], [], []
    for repeat in range(options.repeats + 1):
        array[:, page_ids] = 0
        handle = agent.make_prepped_xfer("READ", local, indices, remote, indices, b"done")
        connection.send(True)
        connection.recv()
        cpu, began = cpu_s(), time.perf_counter()
        state = agent.transfer(handle)
        while state == "PROC":
            state = agent.check_xfer_state(handle)
        seconds, cpu = time.perf_counter() - began, cpu_s() - cpu
        assert state == "DONE", state
        owner_cpu = connection.recv()
        assert sum_of(array, page_ids) == expected, "the pages are not the same"
        agent.release_xfer_handle(handle)
        if repeat:  # the first one connects
            rates.append(gigabytes / seconds)
            reading.append(cpu / gigabytes)
            owning.append(owner_cpu / gigabytes)
    connection.send(False)
    owner.join()
    print(json.dumps({"rates": rates, "receiving": reading, "sending": owning}))


if __name__ == "__main__":
    main()
