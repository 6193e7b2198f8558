"""Looks at a run now and then."""

from __future__ import annotations

from slipstream.cluster.tools.sim.run_result import RunResult, Sample
from slipstream.cluster.tools.sim.sim_world import World
from slipstream.router.protocol.messages import ROLES

NUM_SAMPLES = 100  # of how things stood, over the arrivals


class RunWatch:
    """Takes the samples of a model."""

    def __init__(self, world: World, result: RunResult, span_s: float) -> None:
        self._world, self._result = world, result
        self._every_s = span_s / NUM_SAMPLES
        self._last_s = 0.0
        self._busy_s = dict.fromkeys(ROLES, 0.0)
        self._look()

    def _look(self, _: object = None) -> None:
        self._take()
        clock = self._world.clock
        # After the arrivals things change less and less.
        late = clock.now_s > self._every_s * NUM_SAMPLES
        self._every_s *= 1.1 if late else 1.0
        clock.at(clock.now_s + self._every_s, self._look)

    def close(self) -> None:
        self._take()

    def _take(self) -> None:
        world, now_s = self._world, self._world.clock.now_s
        spent_s = now_s - self._last_s
        ready = dict.fromkeys(ROLES, 0)
        for worker in world.workers.values():
            ready[worker.hello.role] += 1
        shares = {}
        for role in ROLES:
            busy_s = world.total_busy_s(role)
            lately_s = busy_s - self._busy_s[role]
            self._busy_s[role] = busy_s
            shares[role] = min(lately_s / max(spent_s * ready[role], 1e-9), 1.0) if spent_s and ready[role] else 0.0
            self._result.worker_s[role] = self._result.worker_s.get(role, 0.0) + spent_s * ready[role]
            self._result.busy_s[role] = busy_s
        self._last_s = now_s
        num_waiting = world.dispatcher.num_waiting
        self._result.samples.append(
            Sample(
                now_s,
                num_waiting,
                world.num_running - num_waiting,
                ready["prefill"],
                ready["decode"],
                shares["prefill"],
                shares["decode"],
            )
        )
