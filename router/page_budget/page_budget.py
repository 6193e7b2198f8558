"""Divides the memory of each host among its workers, and changes it while they serve.

    needs of all workers --divide_pages--> targets --now--> lower limits
                                                   --as memory has come free--> higher limits

A limit is lowered at once, and raised only by what others have given back: what all workers of a host may hold never
exceeds its budget, also while limits are on their way. Sans-IO: it is shown the workers every now and then and returns
messages. Times are seconds of a clock that never goes back.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from slipstream.kv_transfer.api.ticket import PeerId
from slipstream.router.page_budget.page_ledger import BudgetedWorker, PageLedger
from slipstream.router.page_budget.page_shares import PageNeeds, divide_pages
from slipstream.router.page_budget.water_filling import water_fill
from slipstream.router.protocol.messages import PageLimit

# Workers of an earlier router come back within this time, and until then hold what it allowed them.
SETTLE_S = 3.0
# A worker whose connection is lost may still hold its pages, until it is back or its process has ended.
GONE_S = 3.0
# Without need, limits stay as they are unless they are far from an even division, and for some time.
CALM_S = 2.0
CALM_SHARE = 1 / 8
SMALL_DIVISOR = 32  # a lack of so small a part of a worker's limit can wait as long
TURN_S = 5.0  # where not every worker can have a sequence of full length, the first in order gives way after that


class PageBudget:
    """`budget_bytes` is the memory for KV pages of each host."""

    def __init__(self, budget_bytes: float) -> None:
        self._budget_bytes = budget_bytes
        self._ledgers: dict[PeerId, PageLedger] = {}
        self._gone: dict[str, tuple[dict[str, float], float]] = {}  # bytes by host, until when
        self._settled_s: float | None = None
        self._changed_s: dict[str, float] = {}  # by host
        self._divided: dict[str, tuple[list[PageNeeds], dict[str, int]]] = {}  # by host, at the last look
        self._order: list[str] = []
        self._turn_ends_s = 0.0

    def look(self, workers: Iterable[BudgetedWorker], now: float) -> list[tuple[PeerId, PageLimit]]:
        """The connected workers as they are now. Returns their new limits, which are to be sent at once."""
        if self._settled_s is None:
            self._settled_s = now + SETTLE_S
        self._see(workers, now)
        self._take_turns(now)
        by_host: dict[str, list[PageLedger]] = {}
        for name in self._order:
            ledger = self._named[name]
            for host in ledger.bytes_by_host:
                by_host.setdefault(host, []).append(ledger)
        self._set_targets(by_host, now)
        messages = [
            (ledger.worker.peer, ledger.change(min(ledger.target, ledger.limit)))
            for ledger in self._ledgers.values()
            if ledger.target < ledger.limit or not ledger.last_seq
        ]
        if not self._is_settling(now):
            messages += self._raised(by_host)
        return messages

    def held_bytes(self, host: str) -> float:
        """What the workers of a host may hold now at most, those included that were just lost."""
        return self._held_bytes(host, [one for one in self._ledgers.values() if host in one.bytes_by_host])

    def _held_bytes(self, host: str, ledgers: Sequence[PageLedger]) -> float:
        gone = sum(held.get(host, 0.0) for held, _ in self._gone.values())
        return gone + sum(ledger.num_held * ledger.bytes_by_host[host] for ledger in ledgers)

    def limit_of(self, peer: PeerId) -> int | None:
        """The present limit of a worker; None: it is not known."""
        ledger = self._ledgers.get(peer)
        return None if ledger is None else ledger.limit

    def _see(self, workers: Iterable[BudgetedWorker], now: float) -> None:
        """Takes over who is connected, and what each has said."""
        present = {worker.peer: worker for worker in workers}
        names = {peer.name for peer in present}
        for peer in [peer for peer in self._ledgers if peer not in present]:
            ledger = self._ledgers.pop(peer)
            if peer.name not in names:  # else it is back, and says itself what it holds
                held = {host: ledger.num_held * size for host, size in ledger.bytes_by_host.items()}
                self._gone[peer.name] = (held, now + GONE_S)
        self._gone = {name: one for name, one in self._gone.items() if name not in names and now < one[1]}
        for peer, worker in present.items():
            ledger = self._ledgers.get(peer) or self._ledgers.setdefault(peer, PageLedger(worker))
            ledger.see(worker)
        self._named = {ledger.worker.name: ledger for ledger in self._ledgers.values()}
        self._order = [name for name in self._order if name in names] + sorted(names.difference(self._order))

    def _take_turns(self, now: float) -> None:
        if now >= self._turn_ends_s and self._order:
            self._order.append(self._order.pop(0))
            self._turn_ends_s = now + TURN_S

    def _is_settling(self, now: float) -> bool:
        """Whether workers of an earlier router may still be missing."""
        assert self._settled_s is not None
        return now < self._settled_s and any(one.worker.first_limit for one in self._ledgers.values())

    def _set_targets(self, by_host: dict[str, list[PageLedger]], now: float) -> None:
        """Sets new targets on the hosts where that is worth it. A worker on several hosts gets the lowest."""
        targets: dict[PeerId, int] = {}
        self._divided = {host: self._divide(host, ledgers) for host, ledgers in by_host.items()}
        for host, ledgers in by_host.items():
            needs, shares = self._divided[host]
            if self._is_worth_it(host, ledgers, needs, shares, now):
                self._changed_s[host] = now
            else:
                shares = {ledger.worker.name: ledger.target for ledger in ledgers}
            for ledger in ledgers:
                peer = ledger.worker.peer
                targets[peer] = min(shares[ledger.worker.name], targets.get(peer, ledger.worker.num_pages))
        for peer, target in targets.items():
            self._ledgers[peer].target = target

    def _divide(self, host: str, ledgers: Sequence[PageLedger]) -> tuple[list[PageNeeds], dict[str, int]]:
        """What the workers need, and their shares."""
        needs = [_needs_of(ledger, host) for ledger in ledgers]
        before = self._divided.get(host)
        if before is not None and before[0] == needs:  # most hosts are at rest at most looks
            return before
        return needs, divide_pages(self._budget_bytes, needs)

    def _is_worth_it(
        self, host: str, ledgers: Sequence[PageLedger], needs: Sequence[PageNeeds], shares: dict[str, int], now: float
    ) -> bool:
        """Whether a worker lacks pages that it would get, or the limits are far from what they would be."""
        is_calm = now >= self._changed_s.get(host, float("-inf")) + CALM_S
        for ledger, need in zip(ledgers, needs, strict=True):
            share = shares[need.name]
            lack = min(max(need.need, need.assured), share) - ledger.target
            if lack > ledger.target // SMALL_DIVISOR or (lack > 0 and is_calm):
                return True
            if is_calm and abs(share - ledger.target) * need.page_bytes > CALM_SHARE * self._budget_bytes:
                return True
        return False

    def _raised(self, by_host: dict[str, list[PageLedger]]) -> list[tuple[PeerId, PageLimit]]:
        """Raises limits towards their targets as far as memory is free."""
        rises: dict[PeerId, int] = {}
        for host, ledgers in by_host.items():
            free_bytes = max(self._budget_bytes - self._held_bytes(host, ledgers), 0.0)
            missing = [max(one.target - one.num_held, 0) * one.bytes_by_host[host] for one in ledgers]
            given = water_fill(free_bytes, missing, [one.worker.weight for one in ledgers])
            for ledger, share in zip(ledgers, given, strict=True):
                limit = ledger.num_held + int((share + 1e-6) // ledger.bytes_by_host[host])
                peer = ledger.worker.peer
                rises[peer] = min(limit, ledger.target, rises.get(peer, limit))
        return [
            (peer, self._ledgers[peer].change(limit))
            for peer, limit in rises.items()
            if limit > self._ledgers[peer].limit
        ]


def _needs_of(ledger: PageLedger, host: str) -> PageNeeds:
    worker, report = ledger.worker, ledger.worker.report
    return PageNeeds(
        worker.name,
        ledger.bytes_by_host[host],
        worker.num_pages,
        worker.longest,
        num_used=report.num_used if report is not None else 0,
        num_cached=report.num_cached if report is not None else 0,
        num_wanted=worker.num_asked + (report.num_wanted if report is not None else 0),
        weight=worker.weight,
    )
