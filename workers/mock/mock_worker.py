"""A worker without a model: the protocol of every worker over an engine that only takes time.

There are no sockets and no clock: it takes messages and times and returns messages, so the same object runs behind a
connection and under virtual time.
"""

from __future__ import annotations

from collections.abc import Sequence

from slipstream.router.protocol.messages import Role, RouterMessage, WorkerMessage
from slipstream.workers.mock.mock_engine import MockEngine
from slipstream.workers.mock.mock_profile import MockProfile
from slipstream.workers.mock.output_policy import OutputPolicy
from slipstream.workers.roles.worker_protocol import WorkerProtocol
from slipstream.workers.telemetry.stats_collector import StatsCollector
from slipstream.workers.telemetry.step_times import StepSampler
from slipstream.workers.transfers.ticket_issuer import TicketIssuer


class MockWorker:
    """One incarnation of a worker. A lost connection ends it; the next connection begins with a new one. Without a
    `policy`, tokens follow from a hash of the prompt."""

    def __init__(
        self,
        profile: MockProfile,
        role: Role,
        tickets: TicketIssuer,
        model: str = "",
        *,
        has_stats: bool = False,
        policy: OutputPolicy | None = None,
    ) -> None:
        self._steps = StepSampler(tuple(profile.steps()))
        engine = self.engine = MockEngine(profile, role, model, self._steps, policy)
        transfers = self._transfers = engine.transfers
        stats = StatsCollector(engine, transfers) if has_stats else None
        self.protocol = WorkerProtocol.in_role(role, engine, transfers, tickets, profile.start_lease_s, stats)

    def handle(self, message: RouterMessage, now_s: float) -> list[WorkerMessage]:
        """Answers at once; what takes time comes from `advance`."""
        self._transfers.now_s = now_s
        out = self._end_transfers(self.protocol.handle(message, now_s))
        self._go_on(now_s)
        return out

    def advance(self, now_s: float) -> list[WorkerMessage]:
        """Does everything that is due, but at most one step."""
        self._transfers.advance(now_s)
        out = self._end_transfers(self.protocol.tick(now_s))
        ended_s = self.engine.batch.step_ends_s
        if ended_s is None or ended_s > now_s:
            self._go_on(now_s)
            return out
        outputs, batch = self.engine.batch.end_step(), self.engine.batch
        if batch.prompt_scores:
            out += batch.prompt_scores
            batch.prompt_scores = []
        out += self._end_transfers(self.protocol.role.sampled(outputs))
        self._go_on(ended_s)
        return out

    def next_deadline_s(self) -> float | None:
        """When `advance` will have something to do; a time in the past means now."""
        timer_s, step_ends_s = self._transfers.timers.next_s, self.engine.batch.step_ends_s
        if step_ends_s is None or timer_s is None:
            return timer_s if step_ends_s is None else step_ends_s
        return min(timer_s, step_ends_s)

    def reports(self, now_s: float) -> list[WorkerMessage]:
        """What is to be reported after a call of `handle` or `advance`."""
        step_times = self._steps.due(now_s, self.engine.batch.step_ends_s is None)
        return [*([step_times] if step_times is not None else []), *self.protocol.reports(now_s)]

    def _end_transfers(self, said: Sequence[WorkerMessage]) -> list[WorkerMessage]:
        """What a call has said, and what follows from the transfers that it has ended."""
        out = [*said]
        while ended := self._transfers.take_ended():
            for outcome in ended:
                out += self.protocol.transfer_ended(outcome, self._transfers.now_s)
        return out

    def _go_on(self, now_s: float) -> None:
        """Begins a step, if none is under way, and sets the timer for what may wait too long."""
        self.engine.batch.begin_step(now_s)
        self._transfers.timers.wake(self.protocol.next_deadline_s())
