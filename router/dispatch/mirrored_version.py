"""A version of a model that gets copies of requests and nothing else: a dispatcher of its own, with its own queue,
workers, counts and history, so that nothing of it meets clients' requests or is counted with them."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import replace

from slipstream.router.config.router_config import VersionsConfig
from slipstream.router.dispatch.mirror.copied_original import CopiedOriginal
from slipstream.router.dispatch.mirror.mirror import Mirror, Pair
from slipstream.router.dispatch.model_dispatch import ModelDispatch
from slipstream.router.dispatch.table.actions import Action, Emit, EmitScores, Finish
from slipstream.router.protocol.generation import AdmissionError, GenerateRequest, GenerationError, GenerationFinish
from slipstream.router.requests.history import History
from slipstream.router.requests.receiver import Receiver
from slipstream.router.status.status import Snapshot
from slipstream.router.status.version_status import VersionCounts, VersionStatus

MAX_WAITING = 64  # copies; what the version cannot keep up with is skipped
HISTORY = 64
ENDED = GenerationError("shutting_down", "the mirror has ended")

log = logging.getLogger(__name__)


class MirroredVersion:
    """`perform` carries out actions of its `dispatch`."""

    def __init__(
        self,
        model: ModelDispatch,
        version: str,
        percent: float,
        perform: Callable[[ModelDispatch, Iterable[Action]], None],
    ) -> None:
        self.version = version
        self.mirror = Mirror(percent)
        config = replace(
            model.config, max_queued_requests=MAX_WAITING, max_queued_per_tenant=None, versions=VersionsConfig()
        )
        self.dispatch = ModelDispatch(model.name, config, History(HISTORY), perform)
        self.dispatch.deliver = self._deliver
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

    def shown_in(self, snapshot: Snapshot) -> Snapshot:
        """The snapshot of the model, with the workers and the counts of this version."""
        own = self.dispatch.dispatcher.snapshot(time.monotonic())
        asked = next((one for one in snapshot.versions if one.name == self.version), None)
        counted = next((one for one in own.versions if one.name == self.version), None)
        status = VersionStatus(
            self.version,
            asked.weight if asked is not None else None,
            False,
            counted.num_prefill if counted is not None else 0,
            counted.num_decode if counted is not None else 0,
            counted.num_waiting if counted is not None else 0,
            counted.counts if counted is not None else VersionCounts(),
            replace(self.mirror.counts),
        )
        others = tuple(one for one in snapshot.versions if one.name != self.version)
        return replace(snapshot, workers=snapshot.workers + own.workers, versions=(*others, status))

    @property
    def percent(self) -> float:
        return self.mirror.counts.percent

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

    def _deliver(self, action: Emit | EmitScores | Finish) -> None:
        """Answers of copies end here."""
        if isinstance(action, Emit):
            pair = self._pairs[action.request_id]
            pair.copied_answer.extend(action.token_ids)
            if pair.num_wanted is not None:
                asyncio.get_running_loop().call_soon(self._cancel_if_done, pair)
        elif isinstance(action, Finish):
            self.mirror.copy_ended(self._pairs.pop(action.request_id), action.finish)
