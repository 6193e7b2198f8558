"""Runs the requests of one version on the event loop: turns, timers and the links to its instances."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence

from slipstream.router.batching.scheduler_choice import scheduler_of
from slipstream.router.infer.requests.active_request import ActiveRequest
from slipstream.router.infer.requests.statistics_recorder import StatisticsRecorder
from slipstream.router.infer.requests.version_dispatch import DispatchOptions, VersionDispatch
from slipstream.router.instances.instance_link import InstanceLink
from slipstream.router.instances.messages import Executed, ExecuteRequest, InstanceResponse
from slipstream.router.tensors.infer_error import InferError
from slipstream.router.tensors.model_spec import ModelSpec


class RequestRunner:
    """The shell of a VersionDispatch. After `drain`, `on_idle` is called when the last request has ended; after
    `retire_instance`, `on_emptied` when those of this instance have."""

    def __init__(
        self,
        spec: ModelSpec,
        recorder: StatisticsRecorder,
        options: DispatchOptions,
        on_idle: Callable[[], None],
        on_emptied: Callable[[str], None],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._dispatch = VersionDispatch(spec, scheduler_of(spec), self, recorder, options)
        self._links: dict[str, InstanceLink] = {}
        self._on_idle = on_idle
        self._on_emptied = on_emptied
        self._timer: asyncio.TimerHandle | None = None
        self._timer_s: float | None = None  # uvloop's own clock counts whole milliseconds
        self._is_turn_due = False
        self._is_draining = False

    @property
    def num_waiting(self) -> int:
        return self._dispatch.num_waiting

    @property
    def num_open(self) -> int:
        return self._dispatch.num_open

    @property
    def busy_s(self) -> float:
        """How long instances have executed so far, all together."""
        return self._dispatch.busy_s(time.monotonic())

    def drain(self) -> None:
        """No more requests come."""
        self._is_draining = True

    def submit(self, active: ActiveRequest) -> None:
        """Queues a request. Raises InferError."""
        self._dispatch.submit(active, time.monotonic())
        self.turn_soon()

    def turn_soon(self) -> None:
        """Runs what waits in the next turn of the event loop: requests that come in the same turn may share a batch."""
        if not self._is_turn_due:
            self._is_turn_due = True
            self._loop.call_soon(self._turn)

    def cancel(self, active: ActiveRequest) -> None:
        self._dispatch.cancel(active, time.monotonic())
        self._after_event()

    def add_instance(self, name: str, link: InstanceLink, gate_key: str) -> None:
        self._links[name] = link
        self._dispatch.add_instance(name, time.monotonic(), gate_key)
        self._after_event()

    def retire_instance(self, name: str) -> None:
        """It gets no more requests, but those of the sequences that it has."""
        self._dispatch.retire_instance(name, time.monotonic())
        self._after_event()

    def remove_instance(self, name: str, error: InferError) -> None:
        self._dispatch.remove_instance(name, error, time.monotonic())
        self._links.pop(name, None)
        self._after_event()

    def fail_all(self, error: InferError) -> None:
        """Ends all requests that wait."""
        self._dispatch.fail_all(error, time.monotonic())
        self._after_event()

    def executed(self, name: str, result: Executed) -> None:
        self._dispatch.executed(name, result, time.monotonic())
        self._after_event()

    def responded(self, name: str, n: int, response: InstanceResponse | None, *, is_final: bool) -> None:
        self._dispatch.responded(name, n, response, is_final=is_final, now=time.monotonic())
        self._after_event()

    def request_of(self, name: str, n: int) -> ActiveRequest | None:
        return self._dispatch.request_of(name, n)

    def execute(self, instance: str, batch: int, requests: Sequence[ExecuteRequest]) -> None:
        self._links[instance].execute(batch, requests)

    def cancel_at(self, instance: str, n: int) -> None:
        self._links[instance].cancel(n)

    def close(self) -> None:
        """No timer is left."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = self._timer_s = None

    def _turn(self) -> None:
        self._is_turn_due = False
        self._dispatch.run(time.monotonic())
        self._after_event()

    def _tick(self) -> None:
        self._timer = self._timer_s = None
        self._dispatch.tick(time.monotonic())
        self._after_event()

    def _after_event(self) -> None:
        """Sets the timer anew if its time has changed."""
        next_s = self._dispatch.next_time
        if next_s != self._timer_s:
            self.close()
            if next_s is not None:
                self._timer_s = next_s
                self._timer = self._loop.call_later(max(0.0, next_s - time.monotonic()), self._tick)
        for name in self._dispatch.emptied():
            self._loop.call_soon(self._on_emptied, name)
        if self._is_draining and not self._dispatch.num_open:
            self._is_draining = False
            self._on_idle()
