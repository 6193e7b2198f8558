"""Clients, router and workers of a model under virtual time: the production `Dispatcher`, and `SimWorker`s. The worlds
of several models share clock and machines."""

from __future__ import annotations

import math
import random
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from slipstream.cluster.tools.sim.client_outcomes import Outcomes
from slipstream.cluster.tools.sim.engine.page_names import PageNames
from slipstream.cluster.tools.sim.hardware.hardware_profile import WorkerProfile
from slipstream.cluster.tools.sim.hardware.network import Network, Nic
from slipstream.cluster.tools.sim.hardware.virtual_clock import VirtualClock
from slipstream.cluster.tools.sim.worker.sim_worker import SimWorker
from slipstream.cluster.tools.workload.arrival import Arrival
from slipstream.kv_transfer.api.ticket import PeerId
from slipstream.router.config.router_config import DispatchConfig
from slipstream.router.dispatch.dispatcher import Dispatcher
from slipstream.router.dispatch.table.actions import Action, Close, Emit, Finish, Send
from slipstream.router.protocol.block_hash import BlockChain
from slipstream.router.protocol.generation import AdmissionError, GenerateRequest, Retention
from slipstream.router.protocol.messages import Hello, Role, SamplingParams, StepOutput, WorkerMessage
from slipstream.router.requests.history import History
from slipstream.router.requests.request_state import RequestState
from slipstream.workers.transfers.ticket_issuer import TicketIssuer

MAX_TOKENS = 4096  # that clients allow, or the answer's length where that is more: the router does not know it
PROMPT_CACHE_BYTES = 128 << 20
HISTORY = 64
MAY_COME_BACK = Retention()
HEADS, HEAD_BYTES = 1, 1  # of tickets: pages are counted, not cut


@dataclass(frozen=True, slots=True)
class WorldConfig:
    """`page_tokens` is the unit of pages and of the prefix cache: larger ones cost less time. `report_s`: so often
    workers tell how far running answers are (real ones: with each token)."""

    dispatch: DispatchConfig
    profile: WorkerProfile
    page_tokens: int
    prefix_caching: bool
    report_s: float = 2.0
    seed: int = 0


class _Client:
    """What a client knows of its request."""

    __slots__ = ("arrival", "arrived_s", "first_s", "number")

    def __init__(self, arrival: Arrival, arrived_s: float, number: int) -> None:
        self.arrival, self.arrived_s, self.number = arrival, arrived_s, number
        self.first_s: float | None = None


@dataclass(slots=True)
class Machines:
    """The hosts with their network cards, and the workers on them, of whichever model."""

    nics: list[Nic] = field(default_factory=list)
    hosts: dict[int, list[SimWorker]] = field(default_factory=dict)

    def nic(self, host: int) -> Nic:
        while len(self.nics) <= host:
            self.nics.append(Nic())
        return self.nics[host]

    def beside(self, worker: SimWorker) -> list[SimWorker]:
        """The workers of its host, itself among them; none if it is gone."""
        return next((workers for workers in self.hosts.values() if worker in workers), [])


class World:
    """`run` takes arrivals one by one, so a workload may be of any length. A world that is not alone gets the `clock`
    and the `machines` of the others."""

    def __init__(
        self, config: WorldConfig, clock: VirtualClock | None = None, machines: Machines | None = None
    ) -> None:
        self.config = config
        self.clock = clock if clock is not None else VirtualClock()
        self.machines = machines or Machines()
        profile = config.profile
        self.network = Network(self.clock, profile.link_bytes_per_s, profile.link_latency_s, profile.peer_timeout_s)
        self.dispatcher = Dispatcher(config.dispatch, History(HISTORY), self._name_pages)
        slo = config.dispatch.slo
        self.outcomes = Outcomes(slo.ttft_ms / 1e3, slo.itl_ms / 1e3)
        self.workers: dict[PeerId, SimWorker] = {}
        self.on_drained: Callable[[SimWorker], None] | None = None
        self.busy_s: dict[Role, float] = {"prefill": 0.0, "decode": 0.0}  # of workers that are gone
        self.num_preemptions = 0
        self.num_retries = 0
        self._num_joined = 0
        self._clients: dict[str, _Client] = {}
        self._names: dict[str, PageNames] = {}
        self._arrivals: Iterator[Arrival] = iter(())
        self._num_arrived = 0
        self._num_paused = 0  # conversations that wait for their next request
        self._is_arriving = False
        self._is_asked = True
        self._due_s = math.inf
        self._prompts: OrderedDict[int, bytes] = OrderedDict()
        self._prompt_bytes = 0
        self._sampling: dict[int, SamplingParams] = {}
        self._message_s, self._client_s = profile.message_s, profile.client_s

    def run(self, arrivals: Iterator[Arrival], until: Callable[[], bool] | None = None) -> None:
        """Till the last request has ended; `until` is asked with every event whether that is soon enough."""
        self.begin(arrivals)
        run_worlds([self], until)

    def begin(self, arrivals: Iterator[Arrival]) -> None:
        """The first request is on its way."""
        self._arrivals = arrivals
        self._next_arrival()

    @property
    def is_running(self) -> bool:
        """More requests come, or some have not ended."""
        return self._is_arriving or bool(self._clients) or bool(self._num_paused)

    def due_s(self) -> float:
        """When the dispatcher wants to be called though nothing happens; infinity where it does not."""
        if self._is_asked:  # only an event can move the dispatcher's deadline
            self._is_asked = False
            due_s = self.dispatcher.next_deadline()
            self._due_s = math.inf if due_s is None else due_s
        return self._due_s

    def tick(self) -> None:
        """What is due now."""
        self.perform(self.dispatcher.tick(self.clock.now_s))

    @property
    def num_running(self) -> int:
        """Requests that have come and not ended."""
        return len(self._clients)

    def _next_arrival(self) -> None:
        arrival = next(self._arrivals, None)
        self._is_arriving = arrival is not None
        if arrival is not None:
            self.clock.at(arrival.at_s + self._client_s, self._arrive, arrival)

    def _arrive(self, arrival: Arrival) -> None:
        self._next_arrival()
        self._submit(arrival)

    def _return(self, arrival: Arrival) -> None:
        """An agent's tool has an answer."""
        self._num_paused -= 1
        self._submit(arrival)

    def _submit(self, arrival: Arrival) -> None:
        number = self._num_arrived
        self._num_arrived += 1
        request_id = f"r{number}"
        now_s = self.clock.now_s
        self._clients[request_id] = _Client(arrival, now_s - self._client_s, number)
        request = GenerateRequest(
            request_id,
            self._prompt(arrival.input_length),
            self._sampled(max(MAX_TOKENS, arrival.output_length)),
            tenant=arrival.tenant,
            session=arrival.session,
            retention=None if arrival.tools is None else MAY_COME_BACK,
        )
        try:
            actions = self.dispatcher.submit(request, now_s)
        except AdmissionError as error:
            self._end(request_id, 0, error.error.kind)
            self._is_asked = True
        else:
            self.perform(actions)

    def _prompt(self, num_tokens: int) -> bytes:
        """Its content is not read, so one of each length will do."""
        prompt = self._prompts.get(num_tokens)
        if prompt is None:
            prompt = self._prompts[num_tokens] = bytes(4 * num_tokens)
            self._prompt_bytes += len(prompt)
            while self._prompt_bytes > PROMPT_CACHE_BYTES:
                self._prompt_bytes -= len(self._prompts.popitem(last=False)[1])
        return prompt

    def _sampled(self, max_tokens: int) -> SamplingParams:
        sampling = self._sampling.get(max_tokens)
        if sampling is None:
            sampling = self._sampling[max_tokens] = SamplingParams(max_tokens)
        return sampling

    def _end(self, request_id: str, num_output: int, end: str) -> None:
        client = self._clients.pop(request_id)
        self._names.pop(request_id, None)
        now_s, arrival = self.clock.now_s, client.arrival
        self.outcomes.add(client.arrived_s, client.first_s, now_s, num_output, end)
        if arrival.tools is not None and end in ("stop", "length"):
            self.clock.at(now_s + self._message_s, self._turn_ended, (request_id, arrival.tools))
        if arrival.then is not None:
            self._num_paused += 1
            self.clock.at(now_s + arrival.then.at_s + self._client_s, self._return, arrival.then)

    def _turn_ended(self, told: tuple[str, tuple[str, ...]]) -> None:
        """A front has read an answer."""
        self.perform(self.dispatcher.turn_ended(*told, self.clock.now_s))

    def perform(self, actions: Sequence[Action]) -> None:
        """What the dispatcher wants done."""
        clock = self.clock
        self._is_asked = True
        for action in actions:
            match action:
                case Send(peer, message):
                    worker = self.workers.get(peer)
                    if worker is not None:
                        clock.at(clock.now_s + self._message_s, worker.hear, message)
                case Emit(request_id):
                    client = self._clients[request_id]
                    if client.first_s is None:
                        client.first_s = clock.now_s
                case Finish(request_id, finish):
                    end = finish.error.kind if finish.error is not None else finish.reason
                    self._end(request_id, finish.usage.num_output_tokens, end)
                case Close(peer, reason):
                    raise RuntimeError(f"the router parted with {peer.name}: {reason}")

    def _name_pages(self, state: RequestState, hello: Hello) -> BlockChain:
        names = self._names_of(state.request_id)
        assert names is not None, state.request_id
        return names

    def _names_of(self, request_id: str) -> PageNames | None:
        names = self._names.get(request_id)
        if names is None:
            client = self._clients.get(request_id)
            if client is None:
                return None
            names = PageNames(client.arrival, client.number, self.config.page_tokens)
            self._names[request_id] = names
        return names

    def add_worker(self, name: str, role: Role, host: int, epoch: int = 1) -> SimWorker:
        """A worker that is ready says hello."""
        config, profile, peer = self.config, self.config.profile, PeerId(name, epoch)
        hello = profile.hello(peer, role, host, config.page_tokens, config.prefix_caching)
        tickets = TicketIssuer(peer, hello.addresses, 1, profile.num_layers, HEADS, HEAD_BYTES)
        rng = random.Random(f"{config.seed} {name} {epoch}")
        worker = SimWorker(self, hello, profile, self.machines.nic(host), tickets, config.report_s, rng)
        self.workers[peer] = worker
        self.machines.hosts.setdefault(host, []).append(worker)
        self._num_joined += 1
        self.perform(self.dispatcher.worker_joined(hello, self.clock.now_s))
        worker.begin()
        return worker

    def lose_worker(self, worker: SimWorker, reason: str) -> None:
        """It has died, or gone in peace; its connection breaks."""
        worker.die()
        self.busy_s[worker.hello.role] += worker.engine.computed_s
        self.num_preemptions += worker.engine.num_preemptions
        peer = worker.hello.worker
        del self.workers[peer]
        self.machines.beside(worker).remove(worker)
        self.perform(self.dispatcher.worker_lost(peer, self.clock.now_s, reason))

    def tell_progress(self, worker: SimWorker) -> None:
        """The router hears at once how far those are that decode there. Real workers tell each token."""
        chunks = worker.engine.progress()
        if chunks:
            step = StepOutput(tuple(chunks))
            self.perform(self.dispatcher.worker_message(worker.hello.worker, step, self.clock.now_s))

    def tell(self, worker: SimWorker, messages: Sequence[WorkerMessage]) -> None:
        self.clock.at(self.clock.now_s + self._message_s, self._deliver, (worker, messages))

    def _deliver(self, sent: tuple[SimWorker, Sequence[WorkerMessage]]) -> None:
        worker, messages = sent
        if not worker.is_alive:
            return
        peer, now_s, dispatcher = worker.hello.worker, self.clock.now_s, self.dispatcher
        for message in messages:
            actions = dispatcher.worker_message(peer, message, now_s)
            if actions:
                self.perform(actions)
        self._is_asked = True

    def find(self, peer: PeerId) -> SimWorker | None:
        return self.workers.get(peer)

    def facts(self, request_id: str) -> tuple[int, PageNames | None]:
        client = self._clients.get(request_id)
        if client is None:
            return 1, None
        names = self._names_of(request_id) if self.config.prefix_caching else None
        return client.arrival.output_length, names

    def busy_changed(self, worker: SimWorker) -> None:
        """Workers that compute on the same cores take them from each other."""
        profile = self.config.profile
        if not profile.shared_cores:
            return
        neighbours = self.machines.beside(worker)
        busy = [one for one in neighbours if one.engine.is_busy]
        for one in neighbours:
            others = [other.hello.role for other in busy if other is not one]
            one.engine.share_cores(profile.stretch(one.hello.role, others) if one in busy else 1.0)

    def drained(self, worker: SimWorker) -> None:
        if self.on_drained is not None:
            self.on_drained(worker)

    def total_busy_s(self, role: Role) -> float:
        """Seconds that workers of a role have computed, all together."""
        living = sum(worker.engine.computed_s for worker in self.workers.values() if worker.hello.role == role)
        return self.busy_s[role] + living


def run_worlds(worlds: Sequence[World], until: Callable[[], bool] | None = None) -> None:
    """Worlds of one clock, till the last request of all has ended; `until` is asked with every event whether that is
    soon enough."""
    clock = worlds[0].clock
    events, step = clock.events, clock.step
    next_world = worlds[0]
    while any(world.is_running for world in worlds):
        due_s = math.inf
        for world in worlds:
            world_due_s = world.due_s()
            if world_due_s < due_s:
                due_s, next_world = world_due_s, world
        if events and events[0][0] <= due_s:
            step()
            if until is not None and until():
                return
        elif due_s < math.inf:
            clock.now_s = max(clock.now_s, due_s)
            next_world.tick()
        else:
            running = sum(world.num_running for world in worlds)
            raise RuntimeError(f"nothing is left to happen, and {running} requests have not ended")
