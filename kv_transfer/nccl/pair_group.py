"""The data plane of one link: a torch.distributed group of its two ranks, and a thread that moves messages over it.

A torch.distributed group is fixed for its life and dies with any of its members. So there is no world of all workers:
each link has a group of its own, which ends with the link, and workers may start, die and start again.

    connecting end, rank 0                    listening end, rank 1
      send(message 3) ==========================> receive(message 3)     both ends in the same order
      send(message 1) ==========================> receive(message 1)

Messages go one way only, from the end that has connected. NCCL runs the operations of a group in order, so two ranks
that both send first would wait for each other for ever.

gloo's operations can be waited for, but neither polled nor recalled: hence the thread, and an operation whose peer has
stalled ends only after `timeout_s`. NCCL's end at once, when the group is aborted.
"""

from __future__ import annotations

import re
import threading
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

from slipstream.kv_transfer.api.ticket import TransferAddress
from slipstream.kv_transfer.api.transport import Buffer, Done

JOIN_S = 1.0

Backend = Literal["gloo", "nccl"]


@dataclass(frozen=True, slots=True)
class Rendezvous:
    """Where both ends of a link meet: a TCPStore that the listening rank hosts, and the link's number there."""

    store: TransferAddress
    link: int


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """`device` is where messages are when they are sent, "cpu" with gloo. `host` is this rank's address, for gloo.
    `timeout_s` bounds the rendezvous, and each operation."""

    backend: Backend
    device: str
    host: str
    timeout_s: float

    def open(self, rendezvous: Rendezvous, rank: int) -> dist.ProcessGroup | Any:
        """Joins the group of a link. Blocks until the other end has joined, too. Raises RuntimeError if it does not
        within `timeout_s`."""
        host, port = rendezvous.store
        timeout = timedelta(seconds=self.timeout_s)
        store = TCPStore(host, port, is_master=False, wait_for_workers=False, timeout=timeout)
        prefix = PrefixStore(f"link {rendezvous.link}", store)
        if self.backend == "nccl":
            nccl = dist.ProcessGroupNCCL.Options()
            nccl._timeout = timeout
            return dist.ProcessGroupNCCL(prefix, rank, 2, nccl)
        options = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]
        options._timeout = timeout
        options._threads = 1
        options._devices = [dist.ProcessGroupGloo.create_device(hostname=self.host)]
        return dist.ProcessGroupGloo(prefix, rank, 2, options)


class PairGroup:
    """One end of a link's group, as rank 0, which sends, or as rank 1, which receives.

    `post` is given calls to make on the transport's thread: the `done` of each operation, and `broken` with the reason
    if the group cannot be used any more. An operation's buffer is a host array, or a tensor on the group's device.
    """

    def __init__(
        self,
        settings: GroupSettings,
        rendezvous: Rendezvous,
        rank: int,
        post: Callable[[Callable[[], None]], None],
        broken: Callable[[str], None],
    ) -> None:
        self._settings = settings
        self._rendezvous = rendezvous
        self._rank = rank
        self._post = post
        self._broken = broken
        self._operations: deque[tuple[Buffer, Done]] = deque()
        self._changed = threading.Condition()
        self._is_ended = False
        self._group: Any = None
        self._thread = threading.Thread(target=self._run, name=f"kv-link-{rendezvous.link}", daemon=True)
        self._thread.start()

    @property
    def is_running(self) -> bool:
        """Whether the thread has not ended."""
        return self._thread.is_alive()

    def add(self, buffer: Buffer, done: Done) -> None:
        """Sends or receives a message after those before. Not to be called after `end`."""
        with self._changed:
            self._operations.append((buffer, done))
            self._changed.notify()

    def end(self) -> list[Done]:
        """Ends the group. Returns the callbacks of the operations that have not begun. The callback of one that has is
        posted once it no longer touches its buffer."""
        with self._changed:
            left = [done for _, done in self._operations]
            self._operations.clear()
            self._changed.notify()
            self._abort()
        return left

    def _abort(self) -> None:
        """Under the lock, so that it happens once, and that the thread is the last to let go of the group: whoever
        destroys a group waits for the threads of its backend."""
        self._is_ended = True
        if self._group is not None:
            self._group.abort()
            self._group = None

    def join(self) -> None:
        """Waits for the thread, if the group has ended and the thread can end."""
        if self._is_ended:
            self._thread.join(JOIN_S)

    def _run(self) -> None:
        """The thread, with all that follows."""
        try:
            group = self._settings.open(self._rendezvous, self._rank)
        except RuntimeError as error:
            self._fail(f"its torch.distributed group cannot be made: {_reason(error)}")
            return
        with self._changed:
            self._group = group
        with self._on_device():
            self._serve(group)
        with self._changed:
            self._abort()

    def _serve(self, group: Any) -> None:
        while (operation := self._next()) is not None:
            buffer, done = operation
            error = self._move(group, buffer)
            self._post(partial(done, error))
            if error is not None:
                self._fail(error)
                return

    def _next(self) -> tuple[Buffer, Done] | None:
        with self._changed:
            self._changed.wait_for(lambda: self._operations or self._is_ended)
            return None if self._is_ended else self._operations.popleft()

    def _move(self, group: Any, buffer: Buffer | Tensor) -> str | None:
        """Makes an operation. Returns why it failed, if it did."""
        device = self._settings.device
        ours = buffer if isinstance(buffer, Tensor) else torch.from_numpy(buffer)
        try:
            if self._rank == 0:
                group.send([ours.to(device)], 1, 0).wait()
            else:
                tensor = (
                    ours if ours.device.type == torch.device(device).type else torch.empty_like(ours, device=device)
                )
                group.recv([tensor], 0, 0).wait()
                if tensor is not ours:
                    ours.copy_(tensor)
            if device != "cpu":
                torch.cuda.current_stream(device).synchronize()
        except RuntimeError as error:  # what torch.distributed raises if the peer is gone
            return _reason(error)
        # An aborted operation of NCCL ends like a successful one, so one that ends after the link has failed with it.
        return "the link is down" if self._is_ended else None

    def _on_device(self) -> AbstractContextManager[object]:
        """A stream of this thread's own, so that waiting for a message does not wait for the model."""
        if self._settings.device == "cpu":
            return nullcontext()
        return torch.cuda.stream(torch.cuda.Stream(self._settings.device))  # type: ignore[no-untyped-call]

    def _fail(self, reason: str) -> None:
        self._post(partial(self._broken, reason))


def _reason(error: Exception) -> str:
    """The first line of what torch.distributed says, without the place in its source."""
    return re.sub(r"^\[\S*\] ", "", (str(error).splitlines() or [type(error).__name__])[0])
