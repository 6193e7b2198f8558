"""Instances that an earlier router has started, until this one wants them or stops them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from slipstream.router.instances.messages import StartInstance


@dataclass(slots=True, eq=False)
class Spare:
    """`is_stopped`: no one wants it, and its host has the command to stop it."""

    start: StartInstance
    host: str
    since_s: float
    is_stopped: bool = False


class Spares:
    """By launch. A launch takes a spare whose start is equal to its own, but for the launch itself. Without a revision
    no one can know whether the model's files are the same, so such an instance is not kept. One that is not wanted
    within `keep_s` is stopped."""

    def __init__(self, keep_s: float) -> None:
        self._keep_s = keep_s
        self._spares: dict[str, Spare] = {}

    def __len__(self) -> int:
        return len(self._spares)

    def __contains__(self, launch: str) -> bool:
        return launch in self._spares

    def found(self, start: StartInstance, host: str, now: float) -> None:
        """A host says that it runs this instance."""
        if start.launch not in self._spares:
            self._spares[start.launch] = Spare(start, host, now if start.revision else now - self._keep_s)

    def take(self, wanted: StartInstance) -> Spare | None:
        """The spare for this launch, which is one no more."""
        for launch, spare in self._spares.items():
            if not spare.is_stopped and replace(wanted, launch=launch) == spare.start and wanted.revision:
                return self._spares.pop(launch)
        return None

    def drop(self, launch: str) -> None:
        """Its process has ended."""
        self._spares.pop(launch, None)

    def keep_only(self, host: str, launches: Collection[str]) -> None:
        """This host has come again, with these."""
        for launch, spare in list(self._spares.items()):
            if spare.host == host and launch not in launches:
                del self._spares[launch]

    def is_stopped(self, launch: str) -> bool:
        return launch in self._spares and self._spares[launch].is_stopped

    def unwanted(self, now: float) -> list[Spare]:
        """Those that are to be stopped now."""
        late = [
            spare for spare in self._spares.values() if not spare.is_stopped and now - spare.since_s >= self._keep_s
        ]
        for spare in late:
            spare.is_stopped = True
        return late
