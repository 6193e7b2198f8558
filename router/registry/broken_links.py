"""Circuit breakers: which hosts cannot move pages between each other at present, as failed transfers have shown.

Two workers that both reach the router may still not reach each other: because of a cut cable, a firewall, or a switch
that has lost a port. Only the transfer agents notice, after `kv_transfer.peer_timeout_s`, and the request has waited
all that time. So that not every request pays for it, the link between the two hosts is closed for placement. It is
tried again with one request at a time, after a pause that doubles with each failure:

    open --unreachable--> closed for RETRY_FIRST_S --first placement--> on trial --pages landed--> open
                            ^                                              |
                            '-- twice as long, RETRY_MAX_S at most --------+ unreachable, or no word within TRIAL_S

Between workers of the same host only that pair is closed, because they share no cable with others.

Workers whose pages do not fit together (`page_exchange`) never get a link.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from slipstream.kv_transfer.api.ticket import PeerId
from slipstream.router.protocol.messages import Hello, PageLayout
from slipstream.router.registry.page_exchange import fits, mismatch

RETRY_FIRST_S = 1.0
RETRY_MAX_S = 30.0
TRIAL_S = 20.0  # a trial without a result (its request ended before its pages moved) is over after this
FORGET_S = 600.0  # a closed link that no request wanted to use for this long is forgotten

End = str | PeerId  # a host's address, or a worker


@dataclass(slots=True)
class ClosedLink:
    """`suspects`: the two workers whose transfer failed last. `open_s`: when it may be tried again."""

    suspects: tuple[PeerId, PeerId]
    num_failures: int
    failed_s: float
    open_s: float
    is_on_trial: bool = False


class Links:
    """The links that are not known to work. Sans-IO. A link has no direction."""

    def __init__(self) -> None:
        self._closed: dict[frozenset[End], ClosedLink] = {}
        self._layouts: Counter[PageLayout] = Counter()  # of all workers
        self._fits: dict[tuple[PageLayout, PageLayout], bool] = {}  # of pairs of these, compared once

    @property
    def may_refuse(self) -> bool:
        """Whether some pair of workers may be refused at all."""
        return bool(self._closed) or len(self._layouts) > 1

    def __len__(self) -> int:
        """How many links are not known to work."""
        return len(self._closed)

    def __iter__(self) -> Iterator[tuple[str, str]]:
        """The two ends of each of those links, as text for people."""
        for key in self._closed:
            one, other = sorted(end if isinstance(end, str) else end.name for end in key)
            yield one, other

    def is_open(self, one: Hello, other: Hello, now: float) -> bool:
        """Whether placement may let the two workers exchange pages."""
        if not self.may_refuse:
            return True
        if not self.fits(one, other):
            return False
        closed = self._closed.get(_between(one, other))
        return closed is None or now >= closed.open_s

    def fits(self, one: Hello, other: Hello) -> bool:
        """Whether the two can ever exchange pages. Placement calls this for hundreds of pairs per request."""
        if len(self._layouts) <= 1 or one.layout == other.layout:
            return True
        pair = (one.layout, other.layout)
        known = self._fits.get(pair)
        if known is None:
            known = self._fits[pair] = fits(*pair)
        return known

    def mismatch(self, one: Hello, other: Hello) -> str:
        """Why the two can never exchange pages; "": they can."""
        return "" if self.fits(one, other) else mismatch(one, other)

    def used(self, one: Hello, other: Hello, now: float) -> None:
        """A request was placed on the two workers. If the link was due for a trial, this request is that trial."""
        closed = self._closed.get(_between(one, other)) if self._closed else None
        if closed is not None:
            closed.is_on_trial = True
            closed.open_s = now + TRIAL_S

    def worked(self, one: Hello, other: Hello) -> None:
        """Pages have arrived: the link is open."""
        if self._closed:
            self._closed.pop(_between(one, other), None)

    def failed(self, one: Hello, other: Hello, now: float) -> None:
        """One worker could not reach the other. Transfers that fail at the same time count as one failure."""
        key = _between(one, other)
        suspects = (one.worker, other.worker)
        closed = self._closed.get(key)
        if closed is None:
            for old in [k for k, link in self._closed.items() if now - link.failed_s > FORGET_S]:
                del self._closed[old]
            self._closed[key] = ClosedLink(suspects, 1, now, now + RETRY_FIRST_S)
        elif closed.is_on_trial:
            closed.is_on_trial = False
            closed.suspects = suspects
            closed.num_failures += 1
            closed.failed_s = now
            closed.open_s = now + min(RETRY_FIRST_S * 2 ** (closed.num_failures - 1), RETRY_MAX_S)

    def worker_joined(self, hello: Hello) -> None:
        self._layouts[hello.layout] += 1

    def worker_lost(self, hello: Hello) -> None:
        """A worker was lost. Links that were closed because of that worker alone are open again."""
        peer = hello.worker
        self._layouts[hello.layout] -= 1
        if self._layouts[hello.layout] <= 0:
            del self._layouts[hello.layout]
            self._fits.clear()
        for key, closed in list(self._closed.items()):
            if peer in key or (peer in closed.suspects and closed.num_failures == 1):
                del self._closed[key]


def _between(one: Hello, other: Hello) -> frozenset[End]:
    here, there = _host(one), _host(other)
    return frozenset((here, there)) if here != there else frozenset((one.worker, other.worker))


def _host(hello: Hello) -> str:
    return hello.addresses[0].host if hello.addresses else ""
