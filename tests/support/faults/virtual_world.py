"""A cluster and its clients in virtual time, and everything that goes wrong there, all of it out of one seed.

Whatever happens:

- every request that was admitted ends exactly once, unless its router dies: then it is gone with it
- its tokens are those of an undisturbed run, in order; if it ends early, the first of them
- no worker gets work that it has no room for, no page is written or sent by anybody but its owner
- once nothing goes wrong any more everybody is served in a time that has a bound, also while a cable between two hosts
  is cut; and at rest nothing is left anywhere
- once all cables are whole again requests go over them as if nothing had been
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import get_args

from slipstream.kv_transfer.api.ticket import PeerId
from slipstream.kv_transfer.api.transfer_config import TransferConfig
from slipstream.router.config.router_config import DispatchConfig, MigrationConfig, PolicyName, SloConfig
from slipstream.router.dispatch.table.actions import Emit, EmitScores, Finish
from slipstream.router.protocol.generation import AdmissionError, GenerationError
from slipstream.router.protocol.messages import FinishReason, Role, pack_ids
from slipstream.router.protocol.messages.prompt_scores import ScoredToken
from slipstream.workers.mock.mock_scores import scored_token
from slipstream.workers.mock.output_policy import expected_token
from tests.support.faults.cables import REOPENED_S, Cables
from tests.support.faults.clockwork import Clockwork, Connection
from tests.support.faults.mishaps import Mishaps
from tests.support.faults.mock_process import MAX_MODEL_LEN, MAX_QUEUED_TOKENS, MockProcess
from tests.support.faults.page_wire import SILENCE_S, PageWire
from tests.support.faults.router_process import RouterProcess
from tests.support.faults.toy_model import VOCAB_SIZE, expected_output, expected_scores
from tests.support.faults.virtual_client import Client, about_its_prompt, random_prompt, random_request
from tests.support.faults.virtual_process import Process
from tests.support.faults.virtual_worker import WorkerProcess

FAULTS_END_S = 9.0
WORST_WAIT_S = 25.0  # from the end of the faults to the end of the last request
USUAL_WAIT_S = 8.0  # to the end of any request, where nothing goes wrong
NUM_LATE = 8  # requests
LATE_EVERY_S = 1.0  # so that none has to wait for the pages of another, which may take longer than a reservation may
CANCEL_S = 1.0  # after the end of a request no worker works on it any more
LEASE_S, TRANSFER_LEASE_S = 1.5, 2.0
MAX_EVENTS = 150_000


@dataclass(slots=True)
class Member:
    """A worker that is there, or comes back soon."""

    name: str
    role: Role
    tp: int
    num_pages: int
    max_slots: int
    host: str = "wire"
    last_epoch: int = 0
    wanted_role: Role | None = None  # that it has been asked to change to
    process: WorkerProcess | MockProcess | None = None

    @property
    def current_role(self) -> Role:
        return self.role if self.process is None else self.process.role

    @property
    def is_changing(self) -> bool:
        """Perhaps: it may die first, and come back as what it was."""
        return self.wanted_role not in (None, self.current_role)


class World:
    """`run` it, then `check` it. `seen` counts what happened, by name."""

    def __init__(self, seed: int, checks_often: bool | None = None) -> None:
        self.rng = random.Random(seed)
        self.clock = Clockwork(self.rng)
        self.seen: Counter[str] = Counter()
        self.wire = PageWire(self.clock, self.seen)
        self.clients: dict[str, Client] = {}
        self._checks_often = seed % 16 == 0 if checks_often is None else checks_often
        self._num_router_events = 0
        self._reserves_output = seed % 4 == 2
        self.is_mock = seed % 10 == 9  # of the seeds, so that the other worlds are what they were
        self._asks_about_prompts = seed % 10 == 4 or seed % 40 == 9
        # A fifth of the worlds is on several hosts.
        cables = random.Random(f"cables {seed}")
        self._cables = Cables(self.clock, self.wire, self.seen, cables) if seed % 5 == 2 else None
        self._late_from_s = float("inf")
        self._retries_before: Counter[str] = Counter()  # before the late requests
        self._is_restless = seed % 3 == 1  # long answers, and requests are moved about for no reason
        self._mishaps = Mishaps(self.rng, self.clock, self.seen, FAULTS_END_S)
        rng = self.rng
        self.config = DispatchConfig(
            policy=rng.choice(("slo", *get_args(PolicyName))),
            local_prefill_max_tokens=rng.choice((None, 4, 12, 24, 200)),
            max_queued_requests=rng.choice((10, 100)),
            max_attempts=rng.choice((3, 6)),
            queue_timeout_s=60.0,
            request_timeout_s=90.0,
            reserve_timeout_s=0.5,
            worker_lease_s=LEASE_S,
            ageing_s=1.0,
            # A level that every step endangers: so answers move for less than a pace twice as fast.
            slo=SloConfig(itl_ms=1.0) if seed % 2 else SloConfig(),
            migration=MigrationConfig(
                max_at_once=1 + seed // 3 % 3,
                precopy_pages=(1, 3, 20)[seed // 9 % 3],
                timeout_s=3.0,
                freeze_timeout_s=0.7,
            ),
        )
        self._transfer = TransferConfig(slab_pages=rng.choice((2, 48)), staging_mib=1, lease_s=TRANSFER_LEASE_S)
        if self._cables is not None:
            self._transfer = replace(self._transfer, peer_timeout_s=SILENCE_S)
        self.router: RouterProcess | None = self._new_router()
        self.members = [
            Member(
                f"{role}-{number}",
                role,
                tp=rng.choice((1, 1, 2)),
                num_pages=rng.choice((28, 40, 80)),
                max_slots=rng.choice((2, 4, 8)),
            )
            for role, count in (("prefill", rng.randint(1, 2)), ("decode", rng.randint(1, 2) + self._is_restless))
            for number in range(count)
        ]
        for number, member in enumerate(self.members):
            if self._cables is not None:
                member.host = self._cables.host(number)
            self.clock.after(rng.random() * 0.5, lambda member=member: self._start(member))
        last_submit_s = rng.choice((1.5, 7.0, 7.0))  # a burst, or a stream of them
        for number in range(rng.choice((10, 16, 24))):
            self.clock.after(rng.random() * last_submit_s, lambda number=number: self._submit(number))
        self.is_peaceful = True
        self._has_slow_wires = False
        self._plan_faults()
        if self._cables is not None:
            self._plan_cuts(self._cables)

    def run(self) -> None:
        while self.clock.step():
            assert self.clock.num_events < MAX_EVENTS, "the world does not come to rest"

    def check(self) -> None:
        """Once `run` is over."""
        router = self.router
        assert router is not None
        for request_id, client in self.clients.items():
            self._check_end(request_id, client)
        dispatcher = router.dispatcher
        if self.is_peaceful:
            retries = dispatcher.snapshot(self.clock.now).totals.retries
            # Behind a burst of messages on a slow wire a reservation may take longer than its time-out.
            expected = {"refused", "reserve_timeout"}
            # Answers may have grown since the router heard of free pages. A mock worker lets no prompt wait for more.
            if router.conduct.num_without_pages:
                expected.add("worker_failed")
            assert not retries.keys() - expected, f"nothing went wrong, and yet: {dict(retries)}"
        if self._cables is not None:
            late = Counter(dispatcher.snapshot(self.clock.now).totals.retries) - self._retries_before
            assert not late.keys() - {"refused"}, f"all cables are whole, and yet: {dict(late)}"
            self.seen["link closed at the end"] += len(dispatcher.registry.links)
        assert dispatcher.num_requests == 0
        assert dispatcher.next_deadline() is None
        dispatcher.check_integrity()
        snapshot = dispatcher.snapshot(self.clock.now)
        assert not any(snapshot.queue_depth.values())
        told = {status.peer.name: status for status in snapshot.workers}
        assert told.keys() == {member.name for member in self.members}
        for member in self.members:
            process = member.process
            assert process is not None
            process.check_at_rest()
            status = told[member.name]
            assert status.role == process.role
            free = (status.free_slots, status.free_pages, status.free_tokens)
            assert free == process.free, f"{member.name}: the router takes {process.free} for {free}"
            assert free == (member.max_slots, member.num_pages, MAX_QUEUED_TOKENS), member.name
            assert status.num_requests == 0
            known = dispatcher._index.held_blocks(dispatcher.registry.get(status.peer))
            assert known == process.cached_blocks, f"{member.name}: the index does not know what is cached"
            # A message that never ends by itself, and that nobody waits for, ends with its link.
            assert process.num_in_flight == 0 or self._has_slow_wires

    def _check_end(self, request_id: str, client: Client) -> None:
        request = client.request
        expected, reason = self._expected(client)
        assert client.tokens == expected[: len(client.tokens)], f"{request_id}: other tokens than undisturbed"
        if client.finish is None:
            assert client.is_orphan, f"{request_id} has no end"
            return
        finish = client.finish.finish
        self.seen[finish.reason if finish.error is None else finish.error.kind] += 1
        assert finish.usage.num_output_tokens == len(client.tokens)
        is_usual = self.is_peaceful or client.is_late
        longest_s = USUAL_WAIT_S if is_usual else max(FAULTS_END_S - client.submitted_s, 0) + WORST_WAIT_S
        took_s = client.finished_s - client.submitted_s
        assert took_s <= min(longest_s, request.timeout_s or longest_s) + 1e-6, f"{request_id} took {took_s:.2f} s"
        if finish.reason == "abort":
            assert client.has_left, f"{request_id} was aborted by nobody"
        elif finish.reason == "error":
            assert finish.error is not None
            if finish.error.kind == "worker_failed":
                record = client.router.dispatcher.history.get(request_id)
                assert record is not None
                assert record.num_attempts >= self.config.max_attempts
            elif finish.error.kind == "request_timeout":
                assert request.timeout_s is not None, f"{request_id} was stuck"
                assert took_s >= request.timeout_s - 1e-6
            else:
                assert finish.error.kind == "shutting_down", f"{request_id}: {finish.error}"
        else:
            assert (client.tokens, finish.reason) == (expected, reason), f"{request_id}: {finish}"
            assert client.scores == self._expected_scores(client), f"{request_id}: other log-probabilities"
            self.seen["scored"] += bool(client.scores)

    def _expected(self, client: Client) -> tuple[list[int], FinishReason]:
        sampling = client.request.sampling
        if not self.is_mock:
            return expected_output(client.prompt, sampling, MAX_MODEL_LEN)
        packed, num_tokens = pack_ids(client.prompt), min(sampling.max_tokens, MAX_MODEL_LEN - len(client.prompt))
        return [expected_token(packed, position, VOCAB_SIZE) for position in range(num_tokens)], "length"

    def _expected_scores(self, client: Client) -> list[ScoredToken]:
        num_top = client.request.sampling.prompt_logprobs
        if num_top is None:
            return []
        if not self.is_mock:
            return expected_scores(client.prompt, num_top)
        return [scored_token(before, after, num_top, VOCAB_SIZE) for before, after in pairwise(client.prompt)]

    def _new_router(self) -> RouterProcess:
        return RouterProcess(
            self.clock,
            self.config,
            self._deliver,
            self._after_router_event,
            self._may_expel,
            lambda request_id: self.clients[request_id].tokens,
        )

    def knock(self, worker: Process) -> Connection | None:
        if self.router is None:
            return None
        connection = Connection(self.clock, worker, self.router)
        self.router.accept(connection)
        return connection

    def _deliver(self, action: Emit | EmitScores | Finish) -> None:
        client = self.clients[action.request_id]
        assert client.finish is None, f"{action} after the end"
        assert not client.is_orphan
        if isinstance(action, Emit):
            client.tokens += action.token_ids
        elif isinstance(action, EmitScores):
            assert not client.tokens, "log-probabilities of a prompt behind its first token"
            assert action.scores.first == len(client.scores) + 1
            client.scores += action.scores.tokens()
        else:
            client.finish, client.finished_s = action, self.clock.now
            if not self._has_slow_wires:
                self.clock.after(CANCEL_S, lambda: self._look_for_leftovers(action.request_id))

    def _look_for_leftovers(self, request_id: str) -> None:
        """Nobody works for a client that has its answer; pages may still be draining."""
        for member in self.members:
            process = member.process
            if process is None or process.is_paused or process.has_been_paused:
                continue
            assert not process.works_on(request_id), f"{member.name} still works on {request_id}"

    def _after_router_event(self) -> None:
        self._num_router_events += 1
        if self.router is not None and self.router.dispatcher.registry.links:
            self.seen["events with a closed link"] += 1
        if self.router is not None and (self._checks_often or self._num_router_events % 16 == 0):
            self.router.dispatcher.check_integrity()

    def _restart_router(self) -> None:
        router = self.router
        if router is None:
            return
        self.seen["router restart"] += 1
        if self.rng.random() < 0.3:
            error = GenerationError("shutting_down", "the server is shutting down")
            router.perform(router.dispatcher.finish_all(error, self.clock.now))
        for client in self.clients.values():
            client.is_orphan |= client.router is router and client.finish is None
        router.die()
        self.router = None

        def start() -> None:
            self.router = self._new_router()

        self.clock.after(self.rng.random(), start)

    def _start(self, member: Member) -> None:
        # Epochs follow the wall clock, so a later process always has a later one.
        member.last_epoch = max(member.last_epoch + 100, int(self.clock.now * 1000))
        if self.is_mock:
            member.process = MockProcess(
                self.clock,
                self,
                self._mishaps,
                member.name,
                member.role,
                member.num_pages,
                member.max_slots,
                member.last_epoch,
                lambda process: self._ended(member),
                self._reserves_output,
            )
            return
        member.process = WorkerProcess(
            self.clock,
            self.wire,
            self,
            self._mishaps,
            member.name,
            member.role,
            member.host,
            member.tp,
            member.num_pages,
            member.max_slots,
            member.last_epoch,
            self._transfer,
            lambda process: self._ended(member),
            self._checks_often,
            self._reserves_output,
        )

    def _ended(self, member: Member) -> None:
        assert member.process is not None
        member.last_epoch = member.process.tickets.worker.epoch
        member.role, member.wanted_role = member.process.role, None  # who starts it anew knows what it has become
        member.process = None
        self.clock.after(self.rng.random() * 1.5, lambda: self._start(member))

    def _may_expel(self, peer: PeerId) -> bool:
        process = next(member.process for member in self.members if member.name == peer.name)
        return process is None or process.was_lied_about

    def _plan_faults(self) -> None:
        rng, faults, mishaps = self.rng, self.wire.faults, self._mishaps
        if rng.random() < 0.3:
            faults.corrupt = rng.choice((0.01, 0.1))
        if rng.random() < 0.2:
            faults.stall = rng.choice((0.003, 0.03))
        if rng.random() < 0.5:
            faults.late = rng.choice((0.01, 0.2))
        if rng.random() < 0.1:
            mishaps.sick_row = 0.01
        if rng.random() < 0.1:
            mishaps.broken_engine = 0.003
        if rng.random() < 0.15:
            mishaps.lie_about_credits = rng.choice((0.02, 0.3))
        if rng.random() < 0.15:
            mishaps.lost_blocks = rng.choice((0.01, 0.2))
        if rng.random() < 0.2:
            mishaps.repeated_message = rng.choice((0.02, 0.2))
        kinds = (
            self._kill,
            self._kill,
            self._pause,
            self._pause,
            self._drain,
            self._cut,
            self._cut,
            self._stall,
            self._break_link,
            self._break_link,
            self._restart_router,
        )
        if self._is_restless:
            kinds += (self._drain,) * 6
        planned = [rng.choice(kinds) for _ in range(rng.choice((0, 1, 2, 3, 5, 8)))]
        for strike in planned:
            self.clock.after(rng.random() * FAULTS_END_S, strike)
        chances = (faults.corrupt, faults.stall, mishaps.sick_row, mishaps.broken_engine, mishaps.lie_about_credits)
        self.is_peaceful = not planned and not any(chances) and not faults.late
        self._has_slow_wires = self._stall in planned or faults.stall > 0

        def end() -> None:
            faults.corrupt = faults.stall = faults.late = 0.0
            for member in self.members:
                if member.process is not None:
                    member.process.tell_the_truth()

        self.clock.at(FAULTS_END_S, end)

    def _plan_cuts(self, cables: Cables) -> None:
        cables.plan(FAULTS_END_S)
        self.is_peaceful = False
        self._late_from_s = max(cables.healed_s, FAULTS_END_S + WORST_WAIT_S) + REOPENED_S

        def begin() -> None:
            assert self.router is not None
            self._retries_before = Counter(self.router.dispatcher.snapshot(self.clock.now).totals.retries)

        self.clock.at(self._late_from_s, begin)
        for number in range(NUM_LATE):
            self.clock.at(self._late_from_s + LATE_EVERY_S * number, lambda number=number: self._submit(100 + number))

    def _victim(self) -> WorkerProcess | MockProcess | None:
        alive = [member.process for member in self.members if member.process is not None]
        return self.rng.choice(alive) if alive else None

    def _kill(self) -> None:
        victim = self._victim()
        if victim is not None:
            self.seen["kill"] += 1
            victim.kill()

    def _pause(self) -> None:
        """SIGSTOP, for less or more than the lease, then SIGCONT: all that came meanwhile is heard then."""
        victim = self._victim()
        if victim is None or victim.is_paused:
            return
        self.seen["pause"] += 1
        victim.pause()
        for connection in self.router.connections if self.router is not None else []:
            if connection.is_between(victim):
                self.router.find_silent(connection, lambda: victim.is_paused)
        self.clock.after(self.rng.choice((0.02, 0.3, 2.0, 4.0)) * self.rng.random(), victim.go_on)

    def _drain(self) -> None:
        if self.router is not None and self.router.peers:
            self.seen["drain"] += 1
            peer = self.rng.choice(self.router.peers)
            next_role = self._next_role(peer) if self._is_restless else None
            self.router.perform(self.router.dispatcher.drain(peer, self.clock.now, next_role))

    def _next_role(self, peer: PeerId) -> Role | None:
        """The other one, as long as each role has somebody who keeps it."""
        member = next(member for member in self.members if member.name == peer.name)
        role = member.current_role
        keeps = [other for other in self.members if other.current_role == role and not other.is_changing]
        if member.is_changing or keeps == [member] or self.rng.random() < 0.3:
            return None
        self.seen["role switch"] += 1
        member.wanted_role = "decode" if role == "prefill" else "prefill"
        return member.wanted_role

    def _some_connection(self) -> Connection | None:
        connections = self.router.connections if self.router is not None else []
        return self.rng.choice(connections) if connections else None

    def _cut(self) -> None:
        connection = self._some_connection()
        if connection is not None:
            self.seen["cut"] += 1
            connection.cut()

    def _stall(self) -> None:
        """Nothing comes through for a while; if that is longer than the lease, the worker is lost."""
        connection = self._some_connection()
        if connection is None:
            return
        self.seen["stalled connection"] += 1
        seconds = self.rng.random() * 2 * LEASE_S
        connection.stall(seconds)
        end_s = self.clock.now + seconds
        assert self.router is not None
        self.router.find_silent(connection, lambda: self.clock.now < end_s)

    def _break_link(self) -> None:
        links = self.wire.links()
        if links:
            self.seen["broken link"] += 1
            self.wire.break_link(self.rng.choice(links))

    def _submit(self, number: int) -> None:
        router, rng = self.router, self.rng
        if router is None:
            self.clock.after(rng.random(), lambda: self._submit(number))
            return
        request_id = f"r{number}"
        prompt = random_prompt(rng)
        request = random_request(rng, request_id, prompt, 120 if self._is_restless and len(prompt) < 60 else 16)
        if self._asks_about_prompts:
            request = about_its_prompt(request, number)
        client = Client(request, router, self.clock.now, prompt, is_late=self.clock.now >= self._late_from_s)
        try:
            actions = router.dispatcher.submit(request, self.clock.now)
        except AdmissionError as error:
            self.seen[f"rejected: {error.error.kind}"] += 1
            return
        self.clients[request_id] = client
        router.perform(actions)
        if rng.random() < 0.15:
            self.clock.after(rng.expovariate(4), lambda: self._leave(client))
        if self._is_restless:
            for _ in range(rng.choice((0, 1, 3))):
                self.clock.after(rng.expovariate(8), lambda: self._migrate(client))

    def _migrate(self, client: Client) -> None:
        if client.router is self.router and client.finish is None:
            to = self.rng.choice((None, None, *self.router.peers))
            actions = self.router.dispatcher.migrate(client.request.request_id, self.clock.now, to)
            self.router.perform(actions)

    def _leave(self, client: Client) -> None:
        client.has_left = True
        if client.router is self.router:
            self.router.perform(self.router.dispatcher.cancel(client.request.request_id, self.clock.now))
