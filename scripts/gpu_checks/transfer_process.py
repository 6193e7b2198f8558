"""One of the two processes: transfer_process.py JOB WAY DEVICE ROLE READ_FD WRITE_FD

Lines of JSON go through the pipes. Both fill their pools with random bytes; decode checks that what came is what was
sent before anything is timed.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import statistics
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from queue import SimpleQueue
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from slipstream.kv_transfer.api.ticket import HandoffTicket, PeerId, TransferAddress
from slipstream.kv_transfer.api.transfer_config import TransferConfig
from slipstream.kv_transfer.api.transfer_events import Received, ReceiveFailed, SendFailed, TransferEvent

PREFILL, DECODE = PeerId("prefill-0", 1), PeerId("decode-0", 1)
TLS = {"cuda": "posix,self,tcp,cuda_copy,cuda_ipc", "cpu": "posix,self,tcp"}
STAGING_SLOTS = 16  # messages in both directions; of those of a direction half may be on their way
Transport = Literal["ucx", "nccl"]
REPORT = "report: "  # what a line with the result begins with


@dataclass(frozen=True, slots=True)
class Job:
    num_layers: int
    num_pages: int
    num_heads: int
    head_bytes: int
    num_moved: int  # pages, in all layers
    slab_pages: int
    rounds: int

    def as_dict(self) -> dict[str, int]:
        return asdict(self)

    @property
    def total_bytes(self) -> int:
        return self.num_layers * self.num_moved * self.num_heads * self.head_bytes

    @property
    def shape(self) -> tuple[int, int, int, int]:
        return self.num_layers, self.num_pages, self.num_heads, self.head_bytes

    def page_ids(self, role: str) -> list[int]:
        rng = np.random.default_rng(0 if role == "prefill" else 1)
        return rng.permutation(self.num_pages)[: self.num_moved].tolist()


class Pipe:
    """Lines of JSON to and from the other process. Raises EOFError when it has gone."""

    def __init__(self, reads: int, writes: int) -> None:
        self._reader, self._writer = os.fdopen(reads, "r"), os.fdopen(writes, "w", buffering=1)

    def tell(self, message: object) -> None:
        self._writer.write(json.dumps(message) + "\n")

    def hear(self) -> Any:
        line = self._reader.readline()
        if not line:
            raise EOFError("the other process has gone")
        return json.loads(line)


def main(job: Job, way: str, device: torch.device, role: str, pipe: Pipe) -> None:
    torch.manual_seed(0 if role == "prefill" else 1)
    pool = torch.randint(0, 256, job.shape, dtype=torch.uint8, device=device)
    ways: dict[str, dict[str, Callable[[Job, Tensor, Pipe], None]]] = {
        "pull": {"prefill": lend, "decode": pull},
        "agents": {"prefill": partial(send, "ucx"), "decode": partial(receive, "ucx")},
        "nccl": {"prefill": partial(send, "nccl"), "decode": partial(receive, "nccl")},
    }
    ways[way][role](job, pool, pipe)


def lend(job: Job, pool: Tensor, pipe: Pipe) -> None:
    """Hands out the pool's address and stays until it is no longer used."""
    pipe.tell(digest(job, pool, job.page_ids("prefill")))
    handle = None
    if pool.is_cuda:
        torch.cuda.synchronize()
        handle = [part.hex() if isinstance(part, bytes) else part for part in pool.untyped_storage()._share_cuda_()]
    pipe.tell(handle)
    pipe.hear()


def pull(job: Job, pool: Tensor, pipe: Pipe) -> None:
    expected, handle = pipe.hear(), pipe.hear()
    if handle is None:  # a dry run: CPU memory cannot be lent so, the pool is made again
        source = torch.randint(0, 256, job.shape, dtype=torch.uint8, generator=torch.manual_seed(0))
    else:
        torch.cuda.init()
        parts = [bytes.fromhex(part) if isinstance(part, str) else part for part in handle]
        storage = torch.UntypedStorage._new_shared_cuda(*parts)
        source = torch.empty(0, dtype=torch.uint8, device=pool.device).set_(storage, 0, job.shape)
    source_ids, page_ids = (torch.tensor(job.page_ids(role), device=pool.device) for role in ("prefill", "decode"))
    copy = puller(job, source, source_ids, pool, page_ids)

    def whole() -> None:
        copy()
        if pool.is_cuda:
            torch.cuda.current_stream().synchronize()

    report(job, pool, expected, whole, "one kernel from pool to pool, host's wait included")
    pipe.tell("done")


def puller(job: Job, source: Tensor, source_ids: Tensor, pool: Tensor, page_ids: Tensor) -> Callable[[], object]:
    if not pool.is_cuda:
        return lambda: pool.index_copy_(1, page_ids, source.index_select(1, source_ids))
    module: Any = importlib.import_module("slipstream.kernels.pages.gpu.page_pull")  # imports triton
    everything = {"layers": range(job.num_layers), "source_heads": range(job.num_heads), "heads": range(job.num_heads)}
    return lambda: module.pull_pages(source, source_ids, pool, page_ids, **everything)


def send(transport: Transport, job: Job, pool: Tensor, pipe: Pipe) -> None:
    pipe.tell(digest(job, pool, job.page_ids("prefill")))
    events: SimpleQueue[TransferEvent] = SimpleQueue()
    agent = open_agent(transport, job, pool, PREFILL, events)
    page_ids = job.page_ids("prefill")
    for _ in range(job.rounds + 2):
        transfer_id, addresses = pipe.hear()
        agent.send(ticket(job, transfer_id, addresses), page_ids, job.num_moved)
        event = events.get(timeout=30)
        if isinstance(event, SendFailed):
            raise RuntimeError(event.reason)
    pipe.tell("all sent")  # until then the other agent stays: its end would fail a message that it alone knows it has
    pipe.hear()
    agent.close()


def receive(transport: Transport, job: Job, pool: Tensor, pipe: Pipe) -> None:
    expected = pipe.hear()
    events: SimpleQueue[TransferEvent] = SimpleQueue()
    agent = open_agent(transport, job, pool, DECODE, events)
    address = [agent.address.host, agent.address.port]
    page_ids, next_id = job.page_ids("decode"), 0

    def whole() -> None:
        nonlocal next_id
        next_id += 1
        agent.expect(ticket(job, next_id, [address]), page_ids, PREFILL, 1)
        pipe.tell([next_id, [address]])
        event = events.get(timeout=30)
        if isinstance(event, ReceiveFailed):
            raise RuntimeError(event.reason)
        assert isinstance(event, Received)

    way = "gathered, sent and scattered, from the decode side's request to its last byte"
    over = f"UCX_TLS={TLS[pool.device.type]}" if transport == "ucx" else "NCCL" if pool.is_cuda else "gloo"
    report(job, pool, expected, whole, f"{over}, slabs of {job.slab_pages} pages, {way}")
    pipe.hear()
    pipe.tell("done")
    agent.close()


def open_agent(transport: Transport, job: Job, pool: Tensor, peer: PeerId, events: SimpleQueue[TransferEvent]) -> Any:
    """Needs ucxx for `ucx`, and on a GPU triton: imported here, for the way that asks for them."""
    agents: Any = importlib.import_module("slipstream.kv_transfer.agent")
    staging: Any = importlib.import_module("slipstream.workers.transfers.device_staging")
    copy = importlib.import_module("slipstream.kernels.pages.gpu.page_copy") if pool.is_cuda else None
    message_mib = -(-job.slab_pages * job.num_heads * job.head_bytes // 2**20) + 1
    config = TransferConfig(
        transport=transport,
        tls=TLS[pool.device.type],
        slab_pages=job.slab_pages,
        staging_mib=STAGING_SLOTS * message_mib,
    )
    pages = staging.StagedDevicePool(pool, copy)
    return agents.TransferAgent(pages, rank=0, tp=1, peer=peer, config=config, on_event=events.put)


def ticket(job: Job, transfer_id: int, addresses: list[list[Any]]) -> HandoffTicket:
    found = tuple(TransferAddress(host, port) for host, port in addresses)
    sizes = (job.num_moved, job.slab_pages, job.num_layers, job.num_heads, job.head_bytes)
    return HandoffTicket(transfer_id, DECODE, found, 0, *sizes)


def digest(job: Job, pool: Tensor, page_ids: list[int]) -> str:
    """Of the pages in order, so that both ends can compare."""
    moved = pool[:, torch.tensor(page_ids, device=pool.device)].cpu().numpy()
    return hashlib.blake2b(moved.tobytes(), digest_size=16).hexdigest()


def report(job: Job, pool: Tensor, expected: str, whole: Callable[[], None], note: str) -> None:
    whole()
    if digest(job, pool, job.page_ids("decode")) != expected:
        raise RuntimeError("what arrived is not what was sent")
    whole()
    seconds = []
    for _ in range(job.rounds):
        begun = time.perf_counter()
        whole()
        seconds.append(time.perf_counter() - begun)
    print(REPORT + json.dumps({"seconds": statistics.median(seconds), "note": note}), flush=True)


if __name__ == "__main__":
    work, how, on, part, read_fd, write_fd = sys.argv[1:]
    status = 0
    try:
        main(Job(**json.loads(work)), how, torch.device(on), part, Pipe(int(read_fd), int(write_fd)))
    except Exception:
        traceback.print_exc()
        status = 1
    sys.stdout.flush()
    os._exit(status)  # as workers do: threads of gloo that are still there abort an interpreter that ends
