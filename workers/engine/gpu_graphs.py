"""Decode steps recorded as CUDA graphs, one a batch bucket.

Queuing the few hundred kernels of a step takes the host longer than a GPU needs to run them for a small batch; a replay
is one call. A graph reads and writes the same addresses each time, so a step's numbers go into `DecodeInputs`
first. All graphs allocate from one pool, the largest batch first, so together they hold little more than the largest
alone; what a replay returns is therefore only there until the next replay.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from slipstream.workers.engine.gpu_buckets import bucket_for

log = logging.getLogger(__name__)

Compute = Callable[[], Tensor]


class Recorder(Protocol):
    def record(self, compute: Compute) -> Compute:
        """Runs `compute` once for real, then records it. The result does the same work on the same memory and returns
        the same tensor each time. Raises RuntimeError if it cannot be recorded."""


class CudaGraphRecorder:
    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._pool = torch.cuda.graph_pool_handle()

    def record(self, compute: Compute) -> Compute:
        # Kernels are compiled, and libraries allocate their workspaces, in a first run: neither can be recorded.
        self._stream.wait_stream(torch.cuda.current_stream(self._stream.device))
        with torch.cuda.stream(self._stream):
            compute()
        self._stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        # Other threads (the transfer's) go on calling CUDA meanwhile, which only the thread's own mode allows.
        with torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"):
            out = compute()

        def replay() -> Tensor:
            graph.replay()
            return out

        return replay


class DecodeGraphs:
    """`compute(n)` is a decode step of `n` rows over static memory."""

    def __init__(self, compute: Callable[[int], Tensor], buckets: tuple[int, ...], recorder: Recorder) -> None:
        self._compute = compute
        self._recorder = recorder
        self._wanted = buckets
        self._replays: dict[int, Compute] = {}
        self._buckets: tuple[int, ...] = ()  # that were recorded, ascending

    @property
    def buckets(self) -> tuple[int, ...]:
        return self._buckets

    def record(self) -> None:
        """Records all buckets. One that cannot be recorded, and those after it, are left out with a warning."""
        for bucket in reversed(self._wanted):
            try:
                self._replays[bucket] = self._recorder.record(lambda n=bucket: self._compute(n))  # type: ignore[misc]
            except RuntimeError as error:
                log.warning("decoding %d sequences cannot be recorded as a CUDA graph: %s", bucket, error)
                break
        self._buckets = tuple(sorted(self._replays))

    def bucket_for(self, num_seqs: int) -> int | None:
        """The size that a batch is to be padded to; None if no recorded one holds it."""
        return bucket_for(self._buckets, num_seqs)

    def replay(self, bucket: int) -> Tensor:
        """Queues the step and returns its output [bucket, ...], overwritten by the next replay."""
        return self._replays[bucket]()
