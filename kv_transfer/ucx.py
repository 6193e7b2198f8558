"""The UCX transport: tagged messages and a stream of records over ucxx's low-level worker.

What was learnt about UCX and holds this file's shape:

- Endpoint error handling stays on. Without it UCX may pick CMA, and then the death of a peer in mid-copy is a fatal
  error in the *survivor*. Shared memory qualifies only with POSIX_ERROR_HANDLING=y; otherwise UCX falls back to TCP,
  which is five times slower on one host.
- The thread sleeps on the worker's event fd; an idle worker costs nothing. But two ends that sleep after every
  fragment wake each other by system call for each of them (0.5 GB/s). Yielding the processor for a few dozen
  microseconds after the last sign of life, before sleeping, brings 8 to 10 GB/s on the same two cores.
- ucxx gives no completion callbacks without its own progress thread: completion is read off the request objects, of
  which there are never more than there are staging buffers. Dropping a request object cancels it, so they are kept.
- A message probed with `remove` is ours and waits for as long as we like; for rendezvous messages its bytes are
  still at the sender.
- `UCXEndpoint.close()` does not force and would wait for a stalled peer, and on an endpoint that has failed it returns
  a request around a null pointer that crashes when freed. `close_blocking` forces and is safe in both cases.
"""

from __future__ import annotations

import os
import select
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from ucxx._lib import libucxx
from ucxx._lib.arr import Array

from slipstream.kv_transfer.ticket import TransferAddress
from slipstream.kv_transfer.transport import (
    RECORD_BYTES,
    Arrival,
    Buffer,
    Done,
    Link,
    TransportError,
    TransportEvents,
)

SPIN_S = 50e-6
MIN_STALL_S, MAX_STALL_S = 50e-6, 5e-3
MAX_SLEEP_S = 1.0  # UCX's event fd is not promised to fire for everything; ucxx's own threads wake as often


@dataclass(slots=True, eq=False)
class UcxLink:
    endpoint: Any
    lost: bool = False  # UCX said so; told upwards when the progress call is over
    closed: bool = False
    record: Buffer = field(default_factory=lambda: np.empty(RECORD_BYTES, np.uint8))
    reading: Any = None  # the posted receive into `record`
    writing: deque[tuple[Any, Buffer]] = field(default_factory=deque)

    @property
    def alive(self) -> bool:
        return not (self.lost or self.closed)


@dataclass(slots=True, eq=False)
class _Operation:
    request: Any
    buffer: Buffer
    done: Done


class UcxTransport:
    """`host` is what peers are told to connect to; UCX listens on every interface. Raises TransportError."""

    def __init__(self, host: str, tls: str) -> None:
        options = {
            "TLS": tls,
            "POSIX_ERROR_HANDLING": "y",
            "KEEPALIVE_INTERVAL": "5s",
            "WARN_UNUSED_ENV_VARS": "n",
        }
        features = (libucxx.Feature.TAG, libucxx.Feature.STREAM, libucxx.Feature.WAKEUP)
        try:
            self._context = libucxx.UCXContext(options, feature_flags=features)
            self._worker = libucxx.UCXWorker(self._context)
            self._worker.init_blocking_progress_mode()
            self._listener = libucxx.UCXListener.create(self._worker, 0, self._on_endpoint, deliver_endpoint=True)
        except (libucxx.UCXError, RuntimeError) as error:
            raise TransportError(f"UCX with TLS={tls!r} does not start: {error}") from error
        self._host = host
        self._port = int(self._listener.port)
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._poller = select.epoll()
        self._poller.register(self._worker.epoll_file_descriptor, select.EPOLLIN)
        self._poller.register(self._wake_fd, select.EPOLLIN)
        self._events: TransportEvents | None = None
        self._links: list[UcxLink] = []
        self._accepted: deque[Any] = deque()
        self._operations: list[_Operation] = []
        self._fresh = False  # something was posted since completions were last looked for
        self._spin_until = 0.0
        self._stall_s = MIN_STALL_S
        self._any_tag = libucxx.UCXXTag(0), libucxx.UCXXTagMask(0)

    @property
    def address(self) -> TransferAddress:
        return TransferAddress(self._host, self._port)

    @property
    def num_in_flight(self) -> int:
        return len(self._operations)

    def start(self, events: TransportEvents) -> None:
        self._events = events

    # ---- links

    def connect(self, address: TransferAddress) -> Link:
        try:
            endpoint = libucxx.UCXEndpoint.create(self._worker, address.host, address.port, True)
        except (libucxx.UCXError, RuntimeError, OverflowError) as error:
            raise TransportError(f"cannot connect to {address.host}:{address.port}: {error}") from error
        return self._adopt(endpoint)

    def disconnect(self, link: Link) -> None:
        assert isinstance(link, UcxLink)
        if link.closed:
            return
        link.closed = True
        self._links.remove(link)
        link.endpoint.remove_close_callback()
        link.endpoint.close_blocking()
        self._fresh = True

    def _on_endpoint(self, endpoint: Any) -> None:
        # Called by UCX in the middle of a progress call: only note it.
        self._accepted.append(endpoint)

    def _adopt(self, endpoint: Any) -> UcxLink:
        link = UcxLink(endpoint)
        endpoint.set_close_callback(self._on_close, cb_args=(link,))
        self._links.append(link)
        self._read_record(link)
        return link

    def _on_close(self, link: UcxLink) -> None:
        link.lost = True

    def _read_record(self, link: UcxLink) -> None:
        link.reading = link.endpoint.stream_recv(Array(link.record))

    def send_record(self, link: Link, record: bytes) -> None:
        assert isinstance(link, UcxLink)
        if not link.alive:
            return
        link.writing.append(_post_record(link.endpoint, record))

    # ---- messages

    def send(self, link: Link, tag: int, buffer: Buffer, done: Done) -> None:
        assert isinstance(link, UcxLink)
        if not link.alive:
            done("the link is down")
            return
        request = link.endpoint.tag_send(Array(buffer), libucxx.UCXXTag(tag))
        self._operations.append(_Operation(request, buffer, done))
        self._fresh = True

    def receive(self, arrival: Arrival, buffer: Buffer, done: Done) -> None:
        if arrival.num_bytes > len(buffer):
            # ucxx would write all of it, whatever the size of the buffer.
            raise ValueError(f"a message of {arrival.num_bytes} bytes does not fit a buffer of {len(buffer)}")
        request = self._worker.tag_recv_with_handle(Array(buffer), arrival.handle)
        self._operations.append(_Operation(request, buffer, done))
        self._fresh = True

    # ---- the loop

    def progress(self) -> bool:
        busy = False
        while self._worker.progress_once():
            busy = True
        if busy or self._fresh:
            self._fresh = False
            busy |= self._accept()
            busy |= self._complete()
            busy |= self._read_records()
            busy |= self._probe()
            busy |= self._reap()
        if busy:
            self._spin_until = time.perf_counter() + SPIN_S
            self._stall_s = MIN_STALL_S
        return busy

    def _accept(self) -> bool:
        assert self._events is not None
        busy = False
        while self._accepted:
            endpoint = self._accepted.popleft()
            busy = True
            if endpoint.alive:
                self._events.on_link(self._adopt(endpoint))
        return busy

    def _complete(self) -> bool:
        operations = self._operations
        finished: list[_Operation] = []
        going: list[_Operation] = []
        for operation in operations:
            (finished if operation.request.completed else going).append(operation)
        if not finished:
            return False
        self._operations = going  # before the callbacks, which may post more
        for operation in finished:
            operation.done(_error_of(operation.request))
        return True

    def _read_records(self) -> bool:
        assert self._events is not None
        busy = False
        for link in self._links.copy():
            while link.writing and link.writing[0][0].completed:
                link.writing.popleft()
            while link.alive and link.reading.completed and _error_of(link.reading) is None:
                record = _unframe(link.record)
                self._read_record(link)
                self._events.on_record(link, record)
                busy = True
        return busy

    def _probe(self) -> bool:
        assert self._events is not None
        busy = False
        while (found := self._worker.tag_probe(*self._any_tag, remove=True)).matched:
            self._events.on_arrival(Arrival(int(found.sender_tag.value), int(found.length), found))
            busy = True
        return busy

    def _reap(self) -> bool:
        assert self._events is not None
        lost = [link for link in self._links if link.lost]
        for link in lost:
            if not link.closed:
                self.disconnect(link)
                self._events.on_lost(link, "the connection is gone")
        return bool(lost)

    def wait(self, timeout_s: float) -> None:
        if self._fresh:
            return
        if time.perf_counter() < self._spin_until:
            os.sched_yield()
        elif self._worker.arm():
            self._poller.poll(min(timeout_s, MAX_SLEEP_S))
            self._drain_wake()
        else:
            # Something is queued behind a full shared-memory FIFO. UCX has no event for its emptying and refuses to
            # sleep, so look again soon, and less often if the peer does not run at all.
            select.select([self._wake_fd], [], [], min(timeout_s, self._stall_s))
            self._stall_s = min(2 * self._stall_s, MAX_STALL_S)
            self._drain_wake()

    def _drain_wake(self) -> None:
        try:
            os.eventfd_read(self._wake_fd)
        except BlockingIOError:
            return

    def wake(self) -> None:
        os.eventfd_write(self._wake_fd, 1)

    def close(self) -> None:
        for link in self._links.copy():
            self.disconnect(link)
        while self._operations and self.progress():
            pass
        for operation in self._operations:
            operation.done("the transport is closed")
        self._operations.clear()
        self._poller.close()
        os.close(self._wake_fd)
        del self._listener
        del self._worker
        del self._context


def _error_of(request: Any) -> str | None:
    try:
        request.check_error()
    except libucxx.UCXError as error:
        return f"{type(error).__name__}: {error}"
    return None


def _post_record(endpoint: Any, record: bytes) -> tuple[Any, Buffer]:
    size = len(record).to_bytes(2, "little")
    framed = np.frombuffer((size + record).ljust(RECORD_BYTES, b"\0"), np.uint8)
    return endpoint.stream_send(Array(framed)), framed


def _unframe(framed: Buffer) -> bytes:
    size = int.from_bytes(framed[:2].tobytes(), "little")
    return framed[2 : 2 + size].tobytes()
