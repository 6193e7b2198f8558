"""The service manager that has started this process: systemd, for a unit with `Type=notify`. It is notified when the
cluster serves and when it ends, and, with `WatchdogSec`, that it is alive. Without one, nothing is sent."""

from __future__ import annotations

import os
from contextlib import suppress
from socket import AF_UNIX, SOCK_CLOEXEC, SOCK_DGRAM, socket

US_PER_S = 1_000_000


class ServiceManager:
    """`watchdog_s`: it kills this service if it hears nothing for so long; None: it does not watch."""

    def __init__(self, address: str = "", watchdog_s: float | None = None) -> None:
        self._address = f"\0{address[1:]}" if address.startswith("@") else address  # of Linux's abstract sockets
        self.watchdog_s = watchdog_s if address else None

    @classmethod
    def of_this_process(cls) -> ServiceManager:
        """Takes what it needs out of the environment: processes that this one starts have nothing to say there."""
        address = os.environ.pop("NOTIFY_SOCKET", "")
        watched, interval_us = os.environ.pop("WATCHDOG_PID", ""), os.environ.pop("WATCHDOG_USEC", "")
        is_watched = interval_us.isdigit() and int(interval_us) > 0 and watched in ("", str(os.getpid()))
        return cls(address, int(interval_us) / US_PER_S if is_watched else None)

    @property
    def alive_every_s(self) -> float | None:
        """Twice within the time after which it acts; None: it does not watch."""
        return None if self.watchdog_s is None else self.watchdog_s / 2

    def ready(self) -> None:
        self._send("READY=1", "STATUS=serving")

    def starting_again(self, why: str) -> None:
        """The service goes on: clients wait for the next driver."""
        self._send(f"STATUS={why}; starting again")

    def stopping(self) -> None:
        self._send("STOPPING=1", "STATUS=draining")

    def alive(self) -> None:
        self._send("WATCHDOG=1")

    def _send(self, *lines: str) -> None:
        if not self._address:
            return
        with suppress(OSError), socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC) as to_manager:  # it may be busy or gone
            to_manager.setblocking(False)
            to_manager.sendto("\n".join(lines).encode(), self._address)
