"""The connected workers, and what each of them is busy with."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice

from slipstream.kv_transfer.api.ticket import PeerId
from slipstream.router.protocol.messages import Hello, PagesHeld, Role, Stats
from slipstream.router.protocol.older_peers import VERSION_OF_0_1_0
from slipstream.router.registry.broken_links import Links
from slipstream.router.registry.credits import CreditLedger
from slipstream.router.registry.load_order import LoadOrder
from slipstream.router.registry.sequence_pages import pages_of
from slipstream.router.registry.service_times import ServiceTimes
from slipstream.router.registry.worker_abilities import NO_ABILITIES, WorkerAbilities
from slipstream.router.registry.worker_load import WorkerLoad


@dataclass(slots=True, eq=False)
class WorkerState:
    """One connected worker group. `request_ids` are the requests that it works on, or that are promised to it."""

    hello: Hello
    joined_s: float
    ledger: CreditLedger = field(default_factory=CreditLedger)
    request_ids: set[str] = field(default_factory=set)
    draining: bool = False
    num_migrations: int = 0  # sequences that are moving away from here or to here
    stats: Stats | None = None
    pages: PagesHeld | None = None  # of a worker with a limit
    load: WorkerLoad = field(default_factory=WorkerLoad)
    times: ServiceTimes = field(default_factory=ServiceTimes)
    peer: PeerId = field(init=False)
    name: str = field(init=False)
    version: str = field(init=False)  # of the model that it serves; requests, KV and prefixes never cross versions

    def __post_init__(self) -> None:
        self.peer, self.name, self.version = self.hello.worker, self.hello.worker.name, self.hello.model_version

    @property
    def num_pages(self) -> int:
        """The pages that it may use now, at least one: all that it has, or fewer where workers divide the memory of a
        host."""
        return self.hello.num_pages if self.pages is None else max(self.pages.num_held, 1)

    def pages_for(self, num_tokens: int) -> int:
        """The most pages that a sequence of so many tokens takes."""
        hello = self.hello
        return pages_of(num_tokens, hello.page_tokens, hello.group_pages, hello.state_pages)

    def pages_a_block(self, num_tokens: int) -> tuple[int, float]:
        """Of a sequence of so many tokens: the pages that its next block of `page_tokens` tokens takes, and the mean of
        those that it holds for each block so far."""
        num_blocks = max(-(-num_tokens // self.hello.page_tokens), 1)
        num_growing = sum(not most or num_blocks < most for most in self.hello.group_pages or (0,))
        return num_growing, max(self.pages_for(num_tokens) / num_blocks, 1 / num_blocks)

    def decode_pages(self, num_tokens: int, most_tokens: int) -> int:
        """Pages that it sets aside for a sequence of so many tokens before it takes it: with room for one more, or for
        all that it may come to have."""
        hello = self.hello
        if not hello.reserves_output:
            return self.pages_for(num_tokens + 1)
        return min(self.pages_for(min(most_tokens, hello.max_model_len)), hello.num_pages)


FEW = 8


def common_abilities(workers: Sequence[WorkerState]) -> WorkerAbilities:
    """What requests may ask of whichever of these workers they come to: what is registered at all, and the end tokens
    of any."""
    if not workers:
        return NO_ABILITIES
    ends = {token_id for worker in workers for token_id in worker.hello.end_token_ids}
    registered = set(workers[0].hello.logits_processors).intersection(*[w.hello.logits_processors for w in workers])
    says_ends = any(worker.hello.version != VERSION_OF_0_1_0 for worker in workers)
    return WorkerAbilities(True, tuple(sorted(ends)), tuple(sorted(registered)), says_ends)


def _decode_load(worker: WorkerState) -> float:
    """A rank: minus the free share of slots or of pages, whichever is smaller."""
    hello, ledger = worker.hello, worker.ledger
    return -min(ledger.free_slots / hello.max_slots, ledger.free_pages / hello.num_pages)


def _prefill_load(worker: WorkerState) -> float:
    """A rank: minus the free share of its queue; a group without free pages comes last."""
    ledger = worker.ledger
    return -ledger.free_tokens / worker.hello.max_queued_tokens if ledger.free_pages > 0 else 1.0


class WorkerRegistry:
    """All workers by identity, and those that take new work by role and version, also in the order of their load.
    `pools` holds the service times of all workers of a role. `decode_slots` is how many sequences the decode workers of
    each version can hold; a version without a decode worker is not in it."""

    def __init__(self) -> None:
        self._workers: dict[PeerId, WorkerState] = {}
        self._open: dict[Role, list[WorkerState]] = {"prefill": [], "decode": []}
        self._of_version: dict[tuple[Role, str], list[WorkerState]] = {}
        self._by_load: dict[tuple[Role, str], LoadOrder[WorkerState]] = {}
        self.links = Links()
        self.pools: dict[Role, ServiceTimes] = {"prefill": ServiceTimes(), "decode": ServiceTimes()}
        self.max_model_len: int | None = None  # the longest sequence that a decode worker takes; every request asks
        self.decode_slots: dict[str, int] = {}
        self.abilities = NO_ABILITIES

    def __iter__(self) -> Iterator[WorkerState]:
        return iter(self._workers.values())

    def __len__(self) -> int:
        return len(self._workers)

    def get(self, peer: PeerId) -> WorkerState | None:
        return self._workers.get(peer)

    @property
    def decode_workers(self) -> list[WorkerState]:
        """Decode workers that are not draining."""
        return self._open["decode"]

    def workers_of(self, role: Role, version: str) -> list[WorkerState]:
        """The workers of a role and a version that are not draining."""
        return self._of_version.get((role, version), [])

    def add(self, worker: WorkerState) -> None:
        assert worker.peer not in self._workers
        self._workers[worker.peer] = worker
        self.links.worker_joined(worker.hello)
        role = worker.hello.role
        worker.times = ServiceTimes(self.pools[role], self.pools["prefill" if role == "decode" else "decode"])
        order = self._by_load.get((role, worker.version))
        if order is None:
            load_of = _prefill_load if role == "prefill" else _decode_load
            order = self._by_load[role, worker.version] = LoadOrder(load_of)
        order.add(worker)
        worker.ledger.on_change = partial(order.changed.add, worker)
        self._refresh()

    def remove(self, worker: WorkerState) -> None:
        del self._workers[worker.peer]
        self.links.worker_lost(worker.hello)
        self._close(worker)

    def drain(self, worker: WorkerState) -> None:
        worker.draining = True
        self._close(worker)

    def least_loaded(self, role: Role, limit: int, version: str = "") -> list[WorkerState]:
        """At most `limit` of a version's workers that take new work: those with most room, if there are more."""
        workers = self.workers_of(role, version)
        return workers if len(workers) <= limit else list(islice(self._by_load[role, version], limit))

    def in_order(self, role: Role, version: str = "") -> Iterator[WorkerState]:
        """A version's workers that take new work, most room first."""
        return iter(self._by_load.get((role, version), ()))

    def has_decode_room(self, version: str) -> bool:
        """Whether some decode worker that takes new work has a free slot and a free page. This is asked at every event,
        so of many workers only the least loaded are looked at; of few workers all are, because that is cheaper than
        keeping them in order."""
        for worker in self.least_loaded("decode", FEW, version):  # a plain loop: it nearly always ends at once
            ledger = worker.ledger
            if ledger.free_slots > 0 and ledger.free_pages > 0:
                return True
        return False

    def _close(self, worker: WorkerState) -> None:
        worker.ledger.on_change = None
        place = worker.hello.role, worker.version
        order = self._by_load.get(place)
        if order is not None:  # a worker that drained has left it before
            order.discard(worker)
            if not order:
                del self._by_load[place]
        self._refresh()

    def _refresh(self) -> None:
        self._of_version, self.decode_slots = {}, {}
        for role in self._open:
            self._open[role] = [w for w in self._workers.values() if w.hello.role == role and not w.draining]
            for worker in self._open[role]:
                self._of_version.setdefault((role, worker.version), []).append(worker)
        for worker in self.decode_workers:
            self.decode_slots[worker.version] = self.decode_slots.get(worker.version, 0) + worker.hello.max_slots
        self.max_model_len = max((worker.hello.max_model_len for worker in self.decode_workers), default=None)
        self.abilities = common_abilities([*self.decode_workers, *self._open["prefill"]])
