"""A cluster for the planner to steer: requests, prefill servers and decode batches in steps of `TICK_S`, without a
router.

Prompts are computed one after the other by whichever worker has it done first, decode workers beside their decoding;
sequences of a worker share steps that grow with their number. Workers take their time to start and to change role, and
may fail to. `true_times` is what they really take, `Signals` have `reported_times`: a planner that gets wrong values
has to find out.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from slipstream.cluster.fleet.fleet_port import CHANGING, FleetMember, FleetState, MemberState
from slipstream.cluster.planner.planner_decision import AddWorkers, Planner, PlannerDecision, RemoveWorker, SwitchRole
from slipstream.router.protocol.messages import Role
from slipstream.router.status.load_signals import RoleTimes, Signals, WorkerSignals
from slipstream.router.status.signal_window import SignalWindow

TICK_S = 0.25
TTFT_SLO_S, ITL_SLO_S = 1.0, 0.05
BOTH: tuple[Role, Role] = ("prefill", "decode")
PAGE_TOKENS, NUM_PAGES, MAX_SLOTS, STEP_TOKENS = 16, 20_000, 64, 2048


@dataclass(frozen=True, slots=True)
class Times:
    """Of a GPU of some years: 10 ms a step and 0.3 ms a sequence, 10,000 prompt tokens a second."""

    step_s: float = 0.010
    seq_s: float = 3e-4
    prompt_token_s: float = 1e-4

    def slower(self, factor: float) -> Times:
        return Times(self.step_s * factor, self.seq_s * factor, self.prompt_token_s * factor)


@dataclass(slots=True, eq=False)
class Sequence:
    came_s: float
    isl: int
    osl: int
    left: float
    first_s: float | None = None


@dataclass(slots=True, eq=False)
class PlantWorker:
    name: str
    role: Role
    state: MemberState
    since_s: float
    ready_s: float  # when it will be, if it will
    is_leaving: bool = False
    is_doomed: bool = False
    work_s: float = 0.0  # of prompts
    prompts: deque[tuple[float, Sequence]] = field(default_factory=deque)  # seconds to compute it
    running: list[Sequence] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Load:
    """At some moment: requests a second, prompt and answer tokens."""

    per_s: float
    isl: int
    osl: int


class Plant:
    """`run` it; then look at `decisions`, `attained` and `counts`."""

    def __init__(
        self,
        planner: Planner,
        load: Callable[[float, Plant], Load],
        *,
        num_prefill: int,
        num_decode: int,
        seed: int = 1,
        true_times: Times | None = None,
        reported_times: Times | None = None,
        start_s: float = 40.0,
        switch_s: float = 4.0,
        pending_s: float = 0.0,
        starts_fail: bool = False,
        refuses: bool = False,
        interval_s: float = 5.0,
        max_members: int | None = None,
    ) -> None:
        self.planner, self.load = planner, load
        self.rng = random.Random(seed)
        self.times = true_times or Times()
        self.reported_times = reported_times or self.times
        self.start_s, self.switch_s, self.starts_fail = start_s, switch_s, starts_fail
        self.pending_s = pending_s  # until there is a machine for a worker that is asked for
        self.interval_s, self.max_members, self.refuses = interval_s, max_members, refuses
        self.now = 0.0
        self.window = SignalWindow()
        self.waiting: deque[Sequence] = deque()
        self.workers: list[PlantWorker] = []
        self._num_named = 0
        for _ in range(num_prefill):
            self._new("prefill", "ready", 0.0)
        for _ in range(num_decode):
            self._new("decode", "ready", 0.0)
        self.decisions: list[PlannerDecision] = []
        self.ends: list[tuple[float, bool]] = []  # when it came, whether it kept both levels
        self.num_lost = 0
        self.sizes: list[tuple[float, int, int]] = []
        self._next_look_s = interval_s
        self._until_next = self.rng.expovariate(1.0)  # in requests expected until the next one

    def run(self, until_s: float) -> None:
        while self.now < until_s:
            self.now += TICK_S
            self._arrive()
            self._states()
            self._place()
            for worker in self.workers:
                self._compute(worker)
            if self.now >= self._next_look_s:
                self._next_look_s += self.interval_s
                self._look()

    @property
    def changes(self) -> list[PlannerDecision]:
        return [one for one in self.decisions if one.actions]

    def attainment(self, from_s: float, to_s: float) -> float:
        """Of the requests that came in that time and ended; those that still wait have missed."""
        good = [ok for came_s, ok in self.ends if from_s <= came_s < to_s]
        late = sum(from_s <= one.came_s < min(to_s, self.now - TTFT_SLO_S) for one in self.waiting)
        return sum(good) / (len(good) + late) if good or late else 1.0

    def of_role(self, role: Role, *, ready: bool = False) -> list[PlantWorker]:
        return [w for w in self.workers if w.role == role and not w.is_leaving and (not ready or w.state == "ready")]

    def _arrive(self) -> None:
        load = self.load(self.now, self)
        self._until_next -= load.per_s * TICK_S
        while self._until_next <= 0.0:
            self._until_next += self.rng.expovariate(1.0)
            isl = max(16, round(self.rng.gammavariate(4.0, load.isl / 4.0)))
            osl = max(2, round(self.rng.gammavariate(3.0, load.osl / 3.0)))
            self.waiting.append(Sequence(self.now - TICK_S * self.rng.random(), isl, osl, float(osl - 1)))
            self.window.arrived(0, isl, TTFT_SLO_S, ITL_SLO_S, self.now)

    def _place(self) -> None:
        decoders = self.of_role("decode", ready=True)
        prefillers = self.of_role("prefill", ready=True)
        while self.waiting and decoders:
            decode = min(decoders, key=lambda w: len(w.running) + len(w.prompts))
            if len(decode.running) + len(decode.prompts) >= MAX_SLOTS:
                return
            seq = self.waiting[0]
            own_s = seq.isl * self.times.prompt_token_s
            room = [w for w in decoders if len(w.running) + len(w.prompts) < MAX_SLOTS]
            at = min(room, key=lambda w: (w.work_s, len(w.running)))
            if prefillers:
                remote = min(prefillers, key=lambda w: w.work_s)
                if remote.work_s + own_s <= 0.8 * TTFT_SLO_S or remote.work_s <= at.work_s:
                    at = remote
            if at.work_s > 2.0 * TTFT_SLO_S:
                return  # credits
            self.waiting.popleft()
            at.work_s += own_s
            at.prompts.append((own_s, seq))
            self.window.placed(self.now - seq.came_s, float(self.load(seq.came_s, self).osl), self.now)

    def _compute(self, worker: PlantWorker) -> None:
        if worker.state not in ("ready", "draining"):
            return
        left_s, busy_s = TICK_S, 0.0
        while worker.prompts and left_s > 0.0:
            own_s, seq = worker.prompts[0]
            took_s = min(own_s, left_s)
            left_s -= took_s
            busy_s += took_s
            worker.work_s = max(worker.work_s - took_s, 0.0)
            if took_s < own_s:
                worker.prompts[0] = (own_s - took_s, seq)
                break
            worker.prompts.popleft()
            self._first_token(worker, seq, max(self.now - left_s, seq.came_s + own_s))
        if worker.role == "decode" and worker.running:
            step_s = self.times.step_s + self.times.seq_s * len(worker.running)
            chunk_s = max(STEP_TOKENS * self.times.prompt_token_s, step_s)
            steps = (TICK_S - busy_s) / step_s + busy_s / chunk_s
            for seq in list(worker.running):
                seq.left -= steps
                if seq.left <= 0.0:
                    worker.running.remove(seq)
                    self._finish(seq)

    def _first_token(self, worker: PlantWorker, seq: Sequence, at_s: float) -> None:
        seq.first_s = at_s
        self.window.first_token(0, at_s - seq.came_s, TTFT_SLO_S, seq.isl, 0, worker.role == "prefill", self.now)
        if worker.role == "decode":
            worker.running.append(seq)
            return
        decoders = self.of_role("decode", ready=True)
        if not decoders:
            self.num_lost += 1  # the planner took away what was needed
            return
        min(decoders, key=lambda w: len(w.running)).running.append(seq)

    def _finish(self, seq: Sequence) -> None:
        assert seq.first_s is not None
        itl_s = (self.now - seq.first_s) / (seq.osl - 1)
        good = itl_s <= ITL_SLO_S and seq.first_s - seq.came_s <= TTFT_SLO_S
        foreseen = float(self.load(seq.came_s, self).osl)
        self.window.finished(0, seq.osl, foreseen, itl_s, itl_s <= ITL_SLO_S, good, self.now)
        self.ends.append((seq.came_s, good))

    def _new(self, role: Role, state: MemberState, ready_s: float, doomed: bool = False) -> None:
        self._num_named += 1
        self.workers.append(PlantWorker(f"w{self._num_named}", role, state, self.now, ready_s, is_doomed=doomed))

    def _states(self) -> None:
        for worker in list(self.workers):
            if worker.state == "pending" and self.now >= worker.since_s + self.pending_s:
                worker.state, worker.since_s = "starting", self.now
            if worker.state in ("starting", "connecting") and self.now >= worker.ready_s:
                if worker.is_doomed:
                    self.workers.remove(worker)
                else:
                    worker.state, worker.since_s = "ready", self.now
            if worker.is_leaving and not worker.prompts:
                self._move_away(worker)
                self.workers.remove(worker)

    def _move_away(self, worker: PlantWorker) -> None:
        """What runs there moves to the others."""
        for seq in worker.running:
            others = [w for w in self.of_role("decode", ready=True) if w is not worker and len(w.running) < MAX_SLOTS]
            if not others:
                self.num_lost += 1
                continue
            min(others, key=lambda w: len(w.running)).running.append(seq)
        worker.running.clear()

    def state(self) -> FleetState:
        members = tuple(FleetMember(w.name, w.role, w.state, w.since_s, is_leaving=w.is_leaving) for w in self.workers)
        return FleetState(
            members,
            len(self.of_role("prefill")),
            len(self.of_role("decode")),
            self.max_members,
            any(w.state in CHANGING or w.is_leaving for w in self.workers),
        )

    def signals(self) -> Signals:
        reported = self.reported_times
        times = tuple(
            RoleTimes(
                role,
                (reported.step_s, reported.seq_s, 1e-9),
                (1e-4, reported.prompt_token_s, 1e-12),
                (1e-3, 1e-6),
                (1e-3, 1e-6),
                1e-3,
                100,
                100,
            )
            for role in BOTH
        )
        return Signals(
            self.now,
            "plant",
            TTFT_SLO_S,
            ITL_SLO_S,
            len(self.waiting),
            sum(len(w.running) + len(w.prompts) for w in self.workers),
            self.now - self.waiting[0].came_s if self.waiting else 0.0,
            self.window.short(self.now),
            self.window.long(self.now),
            tuple(self._worker(w) for w in self.workers if w.state in ("ready", "draining")),
            times,
            latest=self.window.latest(self.now),
        )

    def _worker(self, worker: PlantWorker) -> WorkerSignals:
        num_seqs = len(worker.running)
        pages = sum(-(-(seq.isl + seq.osl) // PAGE_TOKENS) for seq in worker.running)
        return WorkerSignals(
            name=worker.name,
            role=worker.role,
            draining=worker.is_leaving,
            tp=1,
            page_tokens=PAGE_TOKENS,
            num_pages=NUM_PAGES,
            max_slots=MAX_SLOTS,
            max_queued_tokens=20_000,
            max_step_tokens=STEP_TOKENS,
            max_model_len=32_768,
            free_slots=MAX_SLOTS - num_seqs,
            free_pages=NUM_PAGES - pages,
            free_tokens=max(20_000 - sum(seq.isl for _, seq in worker.prompts), 0),
            num_seqs=num_seqs,
            num_running=num_seqs,
            context_tokens=sum(seq.isl + seq.osl for seq in worker.running),
            remaining_tokens=sum(seq.left for seq in worker.running),
            num_pending=len(worker.prompts),
            pending_tokens=sum(seq.isl for _, seq in worker.prompts),
            prefill_share=0.0,
        )

    def _look(self) -> None:
        decision = self.planner.decide(self.signals(), self.state(), self.now)
        self.decisions.append(decision)
        for action in () if self.refuses else decision.actions:
            match action:
                case AddWorkers(role, count):
                    for _ in range(count):
                        ready_s = self.now + self.pending_s + self.start_s
                        self._new(role, "pending" if self.pending_s else "starting", ready_s, self.starts_fail)
                case RemoveWorker(name):
                    worker = self._named(name)
                    worker.is_leaving = True
                    worker.state = "draining"
                case SwitchRole(name, role):
                    worker = self._named(name)
                    self._move_away(worker)
                    for _, seq in worker.prompts:
                        self.waiting.appendleft(seq)
                    worker.prompts.clear()
                    worker.work_s = 0.0
                    worker.role, worker.state, worker.ready_s = role, "connecting", self.now + self.switch_s
        self.sizes.append((self.now, len(self.of_role("prefill")), len(self.of_role("decode"))))

    def _named(self, name: str) -> PlantWorker:
        return next(worker for worker in self.workers if worker.name == name)
