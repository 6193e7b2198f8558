"""Which hosts cannot move pages between each other just now, as failed transfers have shown.

Workers that both reach the router may not reach each other: a cut cable, a firewall, a switch that has lost a port.
Only the transfer agents notice, after `kv_transfer.peer_timeout_s`, and their request has waited for so long. So that
not every request pays that, the link between the two hosts is closed for placement, and tried again with one request at
a time, after a pause that doubles:

    open --unreachable--> closed for RETRY_FIRST_S --first placement--> on trial --pages landed--> open
                            ^                                              |
                            '-- twice as long, RETRY_MAX_S at most --------+ unreachable, or no word within TRIAL_S

Between workers of one host only the pair is closed: there is no cable that others share.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from slipstream.kv_transfer.ticket import PeerId
from slipstream.router.messages import Hello

RETRY_FIRST_S = 1.0
RETRY_MAX_S = 30.0
TRIAL_S = 20.0  # a request that ends before its pages have moved proves nothing
FORGET_S = 600.0  # a link that nobody wanted for so long is not remembered

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
    """Sans-IO. A link has no direction."""

    def __init__(self) -> None:
        self._closed: dict[frozenset[End], ClosedLink] = {}

    def __len__(self) -> int:
        """How many are not known to work."""
        return len(self._closed)

    def __iter__(self) -> Iterator[tuple[str, str]]:
        """The ends of those, for people."""
        for key in self._closed:
            one, other = sorted(end if isinstance(end, str) else end.name for end in key)
            yield one, other

    def is_open(self, one: Hello, other: Hello, now: float) -> bool:
        """Whether pages may be sent from one to the other."""
        if not self._closed:
            return True
        closed = self._closed.get(_between(one, other))
        return closed is None or now >= closed.open_s

    def used(self, one: Hello, other: Hello, now: float) -> None:
        """A request was placed there. Where that is a trial, it is the only one."""
        closed = self._closed.get(_between(one, other)) if self._closed else None
        if closed is not None:
            closed.is_on_trial = True
            closed.open_s = now + TRIAL_S

    def worked(self, one: Hello, other: Hello) -> None:
        """Pages have landed."""
        if self._closed:
            self._closed.pop(_between(one, other), None)

    def failed(self, one: Hello, other: Hello, now: float) -> None:
        """One could not reach the other. Transfers that fail together count as one failure."""
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

    def worker_lost(self, peer: PeerId) -> None:
        """A worker is gone: a link that was closed for its sake alone is open again."""
        for key, closed in list(self._closed.items()):
            if peer in key or (peer in closed.suspects and closed.num_failures == 1):
                del self._closed[key]


def _between(one: Hello, other: Hello) -> frozenset[End]:
    here, there = _host(one), _host(other)
    return frozenset((here, there)) if here != there else frozenset((one.worker, other.worker))


def _host(hello: Hello) -> str:
    return hello.addresses[0].host if hello.addresses else ""
