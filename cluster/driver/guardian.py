"""Keeps what is to outlive the driver, and starts the next driver when one was killed, or Ray has died under it.

    slipstream serve       the guardian: has the holder of the router's clients, and little that could break
      '- driver            in a session of its own, so that a terminal's signals reach the guardian alone
           |- reaper       ends what a killed driver leaves behind
           '- ray start    gcs, raylet and their agents; below them the router and the workers

Actors end with their driver, and everything ends with its Ray. So when one of these dies, all processes go but the
guardian. The next driver brings them up again, and the next router continues with the clients that the holder has.

Signals are passed on to the driver, and its exit code is ours. A driver that has served and ends without
such a signal has a successor, in whatever way it ended, and leaves its clients to that one. If the guardian itself is
killed, the driver drains the cluster and ends.

If systemd has started the guardian, it hears from it when the cluster serves and when it ends; its watchdog hears of a
driver that serves only while that driver's event loop runs.
"""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from socket import AF_UNIX, SHUT_WR, SOCK_SEQPACKET, socketpair

from slipstream import __version__
from slipstream.cluster.driver.driver_restarts import DriverRestarts
from slipstream.cluster.processes import process_tree
from slipstream.cluster.processes.guardian_link import ALIVE, INTERRUPTED, LET_GO, RAY_ENDED, READY, DriverEnv
from slipstream.cluster.processes.service_manager import ServiceManager
from slipstream.cluster.state import clusters_here
from slipstream.cluster.terminal import console
from slipstream.router.http.failover.holder.socket_holder import SocketHolder
from slipstream.router.tensor_memory.stale_files import remove_files_of_the_dead

PR_SET_CHILD_SUBREAPER = 36  # from linux/prctl.h
CLEAR_AWAY_S = 5.0  # for the reaper to do its work, in which it waits for 1 s
LINK_S = 1.0  # in which the end of a driver shows at its link
MAX_ROUNDS = 5  # of clearing away: what is killed may have started something meanwhile
SELF_EXPLAINED = {0, 1, 2, INTERRUPTED}  # exit codes of a driver that has said itself why it ends (`serve`)


def guard(command: Sequence[str]) -> int:
    """Runs the driver that `command` starts, and those that have to follow it. Returns the exit code of the last one,
    or, if that was killed, 128 and the number of the signal."""
    _open_standard_files()
    signals = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD}
    if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:  # `nohup`
        signals.remove(signal.SIGHUP)
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # the parent may ignore it, and then no end would be reported
    logging.basicConfig(format="slipstream: %(message)s")  # of the holder, which has little to say
    _adopt_orphans()
    with keeping_clients() as holder:
        code = Guardian(command, holder, signals, ServiceManager.of_this_process()).run()
    clusters_here.remove_those_of(os.getpid())
    remove_files_of_the_dead()  # shared memory of a router or an instance that was killed at the end
    return code if code >= 0 else 128 - code


class Guardian:
    """Waits in the calling thread for `signals`, which are blocked."""

    def __init__(
        self,
        command: Sequence[str],
        holder: SocketHolder | None,
        signals: set[signal.Signals],
        manager: ServiceManager,
    ) -> None:
        self._command = command
        self._holder = holder
        self._signals = signals
        self._manager = manager
        self._restarts = DriverRestarts()
        self._is_told_to_end = False

    def run(self) -> int:
        """The exit code of the last driver; negative: the signal that has killed it."""
        code, served_s = self._run_one(is_again=False)
        while True:
            if self._is_told_to_end:
                if code not in SELF_EXPLAINED:
                    console.error(f"{_why(code)} when it was to end; everything has been stopped")
                break
            pause_s = self._restarts.died(served_s)
            if pause_s is None:
                if code not in SELF_EXPLAINED:
                    console.error(f"{_why(code)}; everything has been stopped")
                break
            console.error(f"{_why(code)}; starting again, and clients wait")
            self._manager.starting_again(_why(code))
            if self._is_told_within(pause_s):
                console.error("interrupted before it was up again; everything has been stopped")
                return INTERRUPTED
            code, served_s = self._run_one(is_again=True)
        return code

    def _run_one(self, *, is_again: bool) -> tuple[int, float | None]:
        """Runs a driver until nothing of it is left. Returns its exit code and how long its cluster has served; None:
        it was never up."""
        try:
            driver = GuardedDriver(self._command, self._holder, is_again, self._manager)
        except OSError as error:  # no memory, too many processes: perhaps there will be room for the next one
            console.error(f"no driver can be started: {error}")
            return 1, None
        code = self._wait_for(driver)
        self._manager.alive()  # what follows takes seconds
        _clear_away()
        self._manager.alive()
        return code, driver.served_s

    def _wait_for(self, driver: GuardedDriver) -> int:
        """Waits for a driver's end, and passes signals on to it."""
        while (code := driver.poll()) is None:
            number = self._signal(driver)
            if number == signal.SIGCHLD:
                _collect_orphans(but=driver.pid)
            elif number is not None:
                self._is_told_to_end = True
                self._manager.stopping()
                driver.tell_to_end(signal.SIGINT if number == signal.SIGHUP else signal.Signals(number))
        return code

    def _signal(self, driver: GuardedDriver) -> int | None:
        """Waits for a signal. None: it is time to say that we are alive, which a driver that serves does itself."""
        every_s = self._manager.alive_every_s
        if every_s is None:
            return signal.sigwait(self._signals)
        found = signal.sigtimedwait(self._signals, every_s)
        if not driver.is_ready:
            self._manager.alive()
        return None if found is None else found.si_signo

    def _is_told_within(self, pause_s: float) -> bool:
        """Waits, and says whether a signal has come that tells us to end."""
        until_s = time.monotonic() + pause_s
        while (found := signal.sigtimedwait(self._signals, max(until_s - time.monotonic(), 0.0))) is not None:
            if found.si_signo != signal.SIGCHLD:
                return True
        return False


class GuardedDriver:
    """One driver. It is asked to end by signals, and tells over a socket when it serves. Raises OSError if it cannot be
    started."""

    def __init__(
        self, command: Sequence[str], holder: SocketHolder | None, is_again: bool, manager: ServiceManager
    ) -> None:
        self._holder = holder
        self._manager = manager
        self._ready_s: float | None = None
        self._end_s: float | None = None
        self._link, theirs = socketpair(AF_UNIX, SOCK_SEQPACKET)
        with theirs:
            driver_env = DriverEnv(
                os.getpid(),
                theirs.fileno(),
                str(holder.path) if holder is not None else None,
                is_again,
                __version__,
                manager.alive_every_s,
            )
            try:
                self._process = subprocess.Popen(
                    command,
                    env=os.environ | driver_env.environment(),
                    pass_fds=[theirs.fileno()],
                    start_new_session=True,
                )
            except OSError:
                self._link.close()
                raise
        self._listener = threading.Thread(target=self._listen, name="driver-link", daemon=True)
        self._listener.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_ready(self) -> bool:
        """Whether its cluster has been up. From then on it says itself that it is alive."""
        return self._ready_s is not None

    @property
    def served_s(self) -> float | None:
        """How long its cluster has served, once it has ended; None if it was never up."""
        self._listener.join(LINK_S)
        return None if self._ready_s is None or self._end_s is None else self._end_s - self._ready_s

    def poll(self) -> int | None:
        code = self._process.poll()
        if code is not None:
            self._end_s = time.monotonic()
        return code

    def tell_to_end(self, number: signal.Signals) -> None:
        """By a signal. That it is ours, and that there will be no other driver, shows at the link."""
        with suppress(OSError):  # it has ended
            self._link.shutdown(SHUT_WR)
        self._process.send_signal(number)

    def _listen(self) -> None:
        """Until the driver has ended."""
        with self._link, suppress(OSError):
            while message := self._link.recv(len(LET_GO)):
                if message == READY:
                    self._ready_s = time.monotonic()
                    self._manager.ready()
                elif message == ALIVE:
                    if self.is_ready:
                        self._manager.alive()
                elif message == LET_GO:
                    if self._holder is not None:
                        with suppress(ValueError):  # the previous router has not gone: what it has stays
                            self._holder.let_go()
                    self._link.send(LET_GO)


def _open_standard_files() -> None:
    """Where the parent has closed stdin, stdout or stderr (`serve >&-`), the next file that is opened would be
    taken for it, in the driver as well."""
    for fd in (0, 1, 2):
        try:
            os.fstat(fd)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # the lowest number that is free, so this one


def _why(code: int) -> str:
    if code == RAY_ENDED:
        return "Ray has ended under the cluster (killed?)"
    if code >= 0:
        return f"the driver has ended with {code}"
    names = {one.value: one.name for one in signal.Signals}
    return f"the driver was killed ({names.get(-code, f'signal {-code}')})"


def _adopt_orphans() -> None:
    """Processes below us whose parent dies become our children, so that we find them."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)


def _collect_orphans(but: int | None = None) -> None:
    """Lets go of children that have ended, except the driver, whose exit code `subprocess` wants."""
    for process in process_tree.own_children():
        if process.pid != but:
            with suppress(ChildProcessError):
                os.waitpid(process.pid, os.WNOHANG)


def _clear_away() -> None:
    """Ends what a driver has left. Its reaper is at that already."""
    for _ in range(MAX_ROUNDS):
        _collect_orphans()
        left = process_tree.descendants()
        if not left:
            return
        process_tree.wait_or_kill(left, CLEAR_AWAY_S)


@contextmanager
def keeping_clients() -> Iterator[SocketHolder | None]:
    """Runs a holder, which holds the router's clients while there is no router. None if there can be no holder, so that
    clients end with their router."""
    try:
        holder = SocketHolder()
    except OSError as error:
        console.warning(f"clients will not outlive the router: {error}")
        yield None
        return
    try:
        yield holder
    finally:
        holder.close()
