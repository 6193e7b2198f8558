"""The transport over torch.distributed: NCCL between the GPUs of one job, gloo in tests.

NCCL knows neither tags nor arrivals: the n-th send from a rank to another meets the n-th receive, and both must be
posted in the same order. So everything but the bytes goes over a gloo group, in small frames of one size, and there
the receiver decides the order:

    sender                         receiver
      | HEADER seq, tag, bytes ----> |     on_arrival; the receiver may take its time and its pick
      | <------------------ GRANT seq |     posted together with the matching receive of the data
      | data ======================> |     sends are posted in the order of the grants

Per peer there are a thread that reads frames, one that writes frames, one that sends data and one that receives
data: gloo's operations can be waited for but not polled. Data groups must not mix directions: NCCL runs the
operations of a pair on one communicator in order, and two ranks that both send first would wait for each other for
ever. Hence `data_to[r]` and `data_from[r]` are groups of two ranks each (`new_group([me, r])`, once per direction).

Limits, next to UCX: the peers are fixed for the life of the job, a peer's death is noticed only as far as gloo
notices it (at once if its connection breaks), and an operation that was posted to a stalled peer cannot be ended, so
`disconnect` gives the link up but its buffers come back only when the group is destroyed. Buffers are host memory;
with `device="cuda"` they bounce through the GPU. The logic is tested with gloo. It has never run on GPUs so far.
"""

from __future__ import annotations

import struct
import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from queue import SimpleQueue

import torch
import torch.distributed as dist

from slipstream.kv_transfer.api.ticket import TransferAddress
from slipstream.kv_transfer.api.transport import (
    RECORD_BYTES,
    Buffer,
    Done,
    Link,
    MessageArrival,
    TransportError,
    TransportEvents,
)

_HEAD = struct.Struct("<BQQQH")  # kind, link, a, b, bytes of the record
_FRAME_BYTES = _HEAD.size + RECORD_BYTES

JOIN_S = 5.0


class _Kind(IntEnum):
    CONNECT = 1
    RECORD = 2
    HEADER = 3
    GRANT = 4
    CLOSE = 5
    BYE = 6


@dataclass(slots=True, eq=False)
class GroupLink:
    """`number` counts the links that the connecting end has made to the other; its parity says which end that was."""

    peer: _Peer
    number: int
    is_alive: bool = True


@dataclass(slots=True)
class _Outgoing:
    link: GroupLink
    buffer: Buffer
    done: Done


@dataclass(slots=True)
class _Incoming:
    seq: int
    link: GroupLink


@dataclass(slots=True, eq=False)
class _Peer:
    rank: int
    frames: SimpleQueue[bytes | None] = field(default_factory=SimpleQueue)
    to_send: SimpleQueue[_Outgoing | None] = field(default_factory=SimpleQueue)
    to_receive: SimpleQueue[tuple[Buffer, Done] | None] = field(default_factory=SimpleQueue)
    links: dict[int, GroupLink] = field(default_factory=dict)
    ungranted: dict[int, _Outgoing] = field(default_factory=dict)
    num_links: int = 0
    num_messages: int = 0
    threads: list[threading.Thread] = field(default_factory=list)


class ProcessGroupTransport:
    """`control` is a gloo group with this rank and all its peers; addresses are `TransferAddress("rank", rank)`."""

    def __init__(
        self,
        control: dist.ProcessGroup,
        data_to: Mapping[int, dist.ProcessGroup],
        data_from: Mapping[int, dist.ProcessGroup],
        device: str = "cpu",
    ) -> None:
        self._rank = dist.get_rank()
        self._control = control
        self._data_to = data_to
        self._data_from = data_from
        self._device = torch.device(device)
        self._events: TransportEvents | None = None
        self._peers = {rank: _Peer(rank) for rank in data_to}
        self._inbox: deque[Callable[[TransportEvents], None]] = deque()
        self._wakeup = threading.Event()
        self._in_flight = 0

    @property
    def address(self) -> TransferAddress:
        return TransferAddress("rank", self._rank)

    @property
    def num_in_flight(self) -> int:
        return self._in_flight

    def start(self, events: TransportEvents) -> None:
        self._events = events
        for peer in self._peers.values():
            for work in (self._read_frames, self._write_frames, self._send_data, self._receive_data):
                name = f"kv-transfer-{self._rank}-{peer.rank}-{work.__name__}"
                thread = threading.Thread(target=self._guard, args=(work, peer), name=name, daemon=True)
                peer.threads.append(thread)
                thread.start()

    # ---- links and messages; the driving thread

    def connect(self, address: TransferAddress) -> Link:
        peer = self._peers.get(address.port)
        if address.host != "rank" or peer is None:
            raise TransportError(f"{address.host}:{address.port} is no peer of rank {self._rank}")
        # Even numbers on links made by the lower rank: the two ends cannot both choose the same.
        number = 2 * peer.num_links + (self._rank > peer.rank)
        peer.num_links += 1
        link = peer.links[number] = GroupLink(peer, number)
        self._write(link, _Kind.CONNECT)
        return link

    def disconnect(self, link: Link) -> None:
        assert isinstance(link, GroupLink)
        if link.is_alive:
            self._write(link, _Kind.CLOSE)
            self._end(link, "the link was cut here")

    def send_record(self, link: Link, record: bytes) -> None:
        assert isinstance(link, GroupLink)
        if link.is_alive:
            self._write(link, _Kind.RECORD, record=record)

    def send(self, link: Link, tag: int, buffer: Buffer, done: Done) -> None:
        assert isinstance(link, GroupLink)
        self._in_flight += 1
        if not link.is_alive:
            self._post_done(done, "the link is down")
            return
        peer = link.peer
        peer.num_messages += 1
        peer.ungranted[peer.num_messages] = _Outgoing(link, buffer, done)
        head = _HEAD.pack(_Kind.HEADER, link.number, tag, peer.num_messages, 8) + len(buffer).to_bytes(8, "little")
        peer.frames.put(head)

    def receive(self, arrival: MessageArrival, buffer: Buffer, done: Done) -> None:
        incoming = arrival.handle
        assert isinstance(incoming, _Incoming)
        if arrival.num_bytes > len(buffer):
            raise ValueError(f"a message of {arrival.num_bytes} bytes does not fit a buffer of {len(buffer)}")
        self._in_flight += 1
        if not incoming.link.is_alive:
            self._post_done(done, "the link is down")
            return
        # The grant and the receive are queued by the same thread: both queues have the same order.
        self._write(incoming.link, _Kind.GRANT, incoming.seq)
        incoming.link.peer.to_receive.put((buffer[: arrival.num_bytes], done))

    def progress(self) -> bool:
        assert self._events is not None
        busy = bool(self._inbox)
        while self._inbox:
            self._inbox.popleft()(self._events)
        return busy

    def wait(self, timeout_s: float) -> None:
        self._wakeup.wait(min(timeout_s, 1.0))
        self._wakeup.clear()

    def wake(self) -> None:
        self._wakeup.set()

    def close(self) -> None:
        for peer in self._peers.values():
            for link in list(peer.links.values()):
                self.disconnect(link)
            peer.frames.put(_HEAD.pack(_Kind.BYE, 0, 0, 0, 0))
            for queue in (peer.frames, peer.to_send, peer.to_receive):
                queue.put(None)
        for peer in self._peers.values():
            for thread in peer.threads:
                thread.join(JOIN_S)  # the reader ends with the peer's BYE; daemons, should it never come
        self.progress()

    def _write(self, link: GroupLink, kind: int, a: int = 0, record: bytes = b"") -> None:
        link.peer.frames.put(_HEAD.pack(kind, link.number, a, 0, len(record)) + record)

    def _end(self, link: GroupLink, reason: str) -> None:
        link.is_alive = False
        link.peer.links.pop(link.number, None)
        ungranted = link.peer.ungranted
        for seq in [seq for seq, outgoing in ungranted.items() if outgoing.link is link]:
            self._post_done(ungranted.pop(seq).done, reason)

    def _post_done(self, done: Done, error: str | None) -> None:
        def finish(events: TransportEvents) -> None:
            self._in_flight -= 1
            done(error)

        self._post(finish)

    def _post(self, call: Callable[[TransportEvents], None]) -> None:
        self._inbox.append(call)
        self.wake()

    # ---- frames; called back on the driving thread

    def _on_frame(self, peer: _Peer, events: TransportEvents, frame: bytes) -> None:
        kind, number, a, seq, size = _HEAD.unpack_from(frame)
        record = frame[_HEAD.size : _HEAD.size + size]
        if kind == _Kind.CONNECT:
            link = peer.links[number] = GroupLink(peer, number)
            events.on_link(link)
            return
        known = peer.links.get(number)
        if known is None:
            return  # of a link that has ended here
        match kind:
            case _Kind.RECORD:
                events.on_record(known, record)
            case _Kind.HEADER:
                events.on_arrival(MessageArrival(a, int.from_bytes(record, "little"), _Incoming(seq, known)))
            case _Kind.GRANT:
                peer.to_send.put(peer.ungranted.pop(a))
            case _Kind.CLOSE:
                self._end(known, "the peer has cut the link")
                events.on_lost(known, "the peer has cut the link")

    def _on_broken(self, peer: _Peer, events: TransportEvents, reason: str) -> None:
        for link in list(peer.links.values()):
            self._end(link, reason)
            events.on_lost(link, reason)

    # ---- the threads of a peer

    def _guard(self, work: Callable[[_Peer], None], peer: _Peer) -> None:
        try:
            work(peer)
        except RuntimeError as error:  # what torch.distributed raises when a peer is gone
            reason = f"rank {peer.rank} is gone: {str(error).splitlines()[0]}"
            self._post(lambda events: self._on_broken(peer, events, reason))

    def _read_frames(self, peer: _Peer) -> None:
        while True:
            tensor = torch.empty(_FRAME_BYTES, dtype=torch.uint8)
            dist.recv(tensor, src=peer.rank, group=self._control)
            frame = tensor.numpy().tobytes()
            if frame[0] == _Kind.BYE:
                self._post(lambda events: self._on_broken(peer, events, "the peer has left"))
                return
            self._post(lambda events, frame=frame: self._on_frame(peer, events, frame))  # type: ignore[misc]

    def _write_frames(self, peer: _Peer) -> None:
        while (frame := peer.frames.get()) is not None:
            tensor = torch.frombuffer(bytearray(frame.ljust(_FRAME_BYTES, b"\0")), dtype=torch.uint8)
            dist.send(tensor, dst=peer.rank, group=self._control)

    def _send_data(self, peer: _Peer) -> None:
        while (outgoing := peer.to_send.get()) is not None:
            tensor = torch.from_numpy(outgoing.buffer).to(self._device)
            self._run(
                outgoing.done,
                lambda tensor=tensor: dist.send(tensor, dst=peer.rank, group=self._data_to[peer.rank]),  # type: ignore[misc]
            )

    def _receive_data(self, peer: _Peer) -> None:
        while (incoming := peer.to_receive.get()) is not None:
            buffer, done = incoming
            host = torch.from_numpy(buffer)
            tensor = host if self._device.type == "cpu" else torch.empty_like(host, device=self._device)

            def receive(tensor: torch.Tensor = tensor, host: torch.Tensor = host) -> None:
                dist.recv(tensor, src=peer.rank, group=self._data_from[peer.rank])
                if tensor is not host:
                    host.copy_(tensor)

            self._run(done, receive)

    def _run(self, done: Done, operation: Callable[[], object]) -> None:
        try:
            operation()
            if self._device.type == "cuda":
                torch.cuda.synchronize(self._device)
        except RuntimeError as error:
            self._post_done(done, str(error).splitlines()[0])
            return
        self._post_done(done, None)
