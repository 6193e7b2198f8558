"""A version of a model that gets copies of requests and nothing else: a dispatcher of its own, with its own queue,
workers, counts and history, so that nothing of it meets clients' requests or is counted with them."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from slipstream.router.config.router_config import DispatchConfig, VersionsConfig
from slipstream.router.dispatch.mirror.mirror import Mirror, Pair
from slipstream.router.dispatch.model_dispatch import ModelDispatch
from slipstream.router.dispatch.table.actions import Action, Emit, Finish
from slipstream.router.protocol.generation import AdmissionError, GenerateRequest, GenerationError, GenerationFinish
from slipstream.router.protocol.messages import TokenLogprob
from slipstream.router.requests.history import History, RequestRecord
from slipstream.router.requests.receiver import Receiver
from slipstream.router.status.status import Snapshot
from slipstream.router.status.version_status import VersionStatus

MAX_WAITING = 64  # copies; what the version cannot keep up with is skipped
HISTORY = 64
ENDED = GenerationError("shutting_down", "the mirror has ended")

log = logging.getLogger(__name__)


class MirroredVersion:
    """`perform` carries out actions of its `dispatch`."""

    def __init__(
        self,
        model: str,
        version: str,
        percent: float,
        config: DispatchConfig,
        perform: Callable[[ModelDispatch, Iterable[Action]], None],
    ) -> None:
        self.version = version
        self.mirror = Mirror(percent)
        own = replace(config, max_queued_requests=MAX_WAITING, max_queued_per_tenant=None, versions=VersionsConfig())
        self.dispatch = ModelDispatch(model, own, History(HISTORY), perform, self._deliver)
        self._perform = perform
        self._pairs: dict[str, Pair] = {}  # by the id of the copy
        self._is_closed = False

    def observed(self, request: GenerateRequest, receiver: Receiver) -> Receiver:
        """The receiver for a request that has been admitted: its own or, if it is copied, one that passes everything
        on. The copy is submitted after the present turn of the event loop."""
        if not self.dispatch.has_decode_workers:
            return receiver
        pair = self.mirror.pair_of(request)
        if pair is None:
            return receiver
        asyncio.get_running_loop().call_soon(self._submit, pair)
        return CopiedOriginal(receiver, pair, self._original_ended)

    def status(self) -> VersionStatus | None:
        """The counts of the version; None as long as none of its workers has come."""
        found = next((one for one in self.snapshot().versions if one.name == self.version), None)
        return replace(found, is_live=False, weight=0.0, mirror=replace(self.mirror.counts)) if found else None

    def snapshot(self) -> Snapshot:
        return self.dispatch.dispatcher.snapshot(time.monotonic())

    def close(self) -> None:
        """Ends all copies."""
        self._is_closed = True
        self._perform(self.dispatch, self.dispatch.dispatcher.finish_all(ENDED, time.monotonic()))
        self.dispatch.close()

    def _submit(self, pair: Pair) -> None:
        if self._is_closed:
            return
        try:
            actions = self.dispatch.dispatcher.submit(pair.copy, time.monotonic())
        except AdmissionError as error:
            log.debug("a copy is skipped: %s", error)
            self.mirror.refused(pair)
            return
        self._pairs[pair.copy.request_id] = pair
        self._perform(self.dispatch, actions)
        self._cancel_if_done(pair)

    def _original_ended(self, pair: Pair, finish: GenerationFinish) -> None:
        self.mirror.original_ended(pair, finish)
        self._cancel_if_done(pair)

    def _cancel_if_done(self, pair: Pair) -> None:
        if pair.is_copy_done and pair.copy.request_id in self._pairs:
            actions = self.dispatch.dispatcher.cancel(pair.copy.request_id, time.monotonic())
            self._perform(self.dispatch, actions)

    def _deliver(self, action: Emit | Finish) -> None:
        """Answers of copies end here."""
        if isinstance(action, Emit):
            pair = self._pairs[action.request_id]
            pair.copied_answer.extend(action.token_ids)
            if pair.num_wanted is not None:
                asyncio.get_running_loop().call_soon(self._cancel_if_done, pair)
        else:
            self.mirror.copy_ended(self._pairs.pop(action.request_id), action.finish)


@dataclass(slots=True)
class CopiedOriginal:
    """Receives the output of a request that is copied: notes its tokens, and passes everything on."""

    receiver: Receiver
    pair: Pair
    ended: Callable[[Pair, GenerationFinish], None]

    @property
    def record(self) -> RequestRecord:
        return self.receiver.record

    def deliver(self, token_ids: tuple[int, ...], logprobs: tuple[TokenLogprob, ...]) -> None:
        self.receiver.deliver(token_ids, logprobs)
        self.pair.answer.extend(token_ids)

    def end(self, finish: GenerationFinish) -> None:
        self.receiver.end(finish)
        self.ended(self.pair, finish)
