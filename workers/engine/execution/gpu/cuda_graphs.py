"""Decode steps recorded as CUDA graphs, one for each batch bucket.

For a small batch, queuing the few hundred kernels of a step takes the host longer than the GPU needs to run them. A
replay is a single call. A graph reads and writes the same addresses each time, so the numbers of a step are put into
`DecodeInputs` first. All graphs allocate from one pool, the largest batch first, so together they need little more
memory than the largest one alone; therefore, the result of a replay is valid only until the next replay.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from slipstream.workers.engine.execution.gpu.batch_buckets import bucket_for

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
    """The recorded steps. `compute(n)` is a decode step of `n` rows over static memory."""

    def __init__(self, compute: Callable[[int], Tensor], buckets: tuple[int, ...], recorder: Recorder) -> None:
        self._compute = compute
        self._recorder = recorder
        self._wanted = buckets
        self._replays: dict[int, Compute] = {}
        self._buckets: tuple[int, ...] = ()  # those that were recorded, ascending

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
        """The size to which a batch has to be padded; None if it is larger than all recorded sizes."""
        return bucket_for(self._buckets, num_seqs)

    def replay(self, bucket: int) -> Tensor:
        """Queues the step and returns its output [bucket, ...], overwritten by the next replay."""
        return self._replays[bucket]()
