"""Readiness is proven: a token is generated over the whole path before a model is reported ready."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable
from typing import Protocol

from slipstream.router.dispatch.worker_port import WorkerPort
from slipstream.router.protocol.generation import AdmissionError, GenerateRequest
from slipstream.router.protocol.messages import SamplingParams
from slipstream.router.requests.history import History
from slipstream.router.requests.stream import GenerationStream
from slipstream.router.status.status import Snapshot

log = logging.getLogger(__name__)

RETRY_S = 1.0
PROMPT_TOKENS = 64  # several pages, the last one only partly filled
NUM_TOKENS = 2  # the first comes from the prefill group, the second from the decode worker, after the hand-off


class ProbeTarget(Protocol):
    """What the probe needs of `GenerationService`."""

    @property
    def history(self) -> History: ...
    def has_workers(self, model: str) -> bool: ...
    def max_model_len_of(self, model: str) -> int | None: ...
    def submit(self, request: GenerateRequest) -> GenerationStream: ...
    def snapshot_of(self, model: str) -> Snapshot: ...
    @property
    def worker_port(self) -> WorkerPort: ...


class ReadinessProbe:
    """Sends a request to a model as soon as its workers are there, and repeats it until one has been answered
    completely.

    With every placement policy, the request goes through a prefill group if there is one; where `needs_prefill_group`
    says so, the probe waits until there is. `missing` says what it still waits for; it is None once the probe has
    succeeded.
    """

    def __init__(self, service: ProbeTarget, model: str, needs_prefill_group: Callable[[], bool]) -> None:
        self._service = service
        self._model = model
        self._needs_prefill_group = needs_prefill_group
        self.missing: str | None = "no decode worker has connected yet"

    async def run(self) -> None:
        """Returns when a token has been generated."""
        while True:
            self.missing = self._missing_worker()
            if self.missing is not None:
                await self._wait_for_change()
                continue
            self.missing = "the first token is still being waited for"
            failure = await self._probe()
            if failure is None:
                self.missing = None
                return
            log.warning("the first request to model %r failed: %s", self._model, failure)
            self.missing = f"the first request failed: {failure}"
            await self._wait_for_change()

    async def _wait_for_change(self) -> None:
        if not self._service.has_workers(self._model):
            await self._service.worker_port.wait_for_join()
            return
        try:
            async with asyncio.timeout(RETRY_S):
                await self._service.worker_port.wait_for_join()
        except TimeoutError:
            pass  # no new worker, but an old one may have recovered, or a prefill group may no longer be required

    def _missing_worker(self) -> str | None:
        if not self._service.has_workers(self._model):
            return "no decode worker has connected yet"
        roles = {worker.role for worker in self._service.snapshot_of(self._model).workers if not worker.draining}
        if self._needs_prefill_group() and "prefill" not in roles:
            return "no prefill worker has connected yet"
        return None

    async def _probe(self) -> str | None:
        """Sends one request. Returns the reason of its failure, or None."""
        longest = (self._service.max_model_len_of(self._model) or 0) - NUM_TOKENS
        num_tokens = max(1, min(PROMPT_TOKENS, longest))
        request = GenerateRequest(
            request_id=f"readiness-probe-{secrets.token_hex(8)}",
            prompt_ids=[1] * num_tokens,  # a token id that every vocabulary has
            sampling=SamplingParams(max_tokens=NUM_TOKENS, temperature=0.0, ignore_eos=True),
            cache_salt=secrets.token_hex(8),  # otherwise the second try would find its prompt cached
            local_prefill_max_tokens=0,
            model=self._model,
        )
        try:
            with self._service.submit(request) as stream:
                num_received = 0
                async for delta in stream:
                    num_received += len(delta)
        except AdmissionError as error:
            return str(error)
        finish = stream.finish
        if finish is None or finish.error is not None or num_received != NUM_TOKENS:
            return finish.error.message if finish is not None and finish.error else f"{num_received} tokens arrived"
        record = self._service.history.get(request.request_id)
        if self._needs_prefill_group() and record is not None and record.decisions[-1].prefill is None:
            return f"it was not placed on a prefill worker: {record.why}"
        return None
