"""The control records of a link: who is at the other end, and which transfers have failed there.

sender                     receiver
  | Hello ------------------> |      first record of a link
  | <--------------- Welcome  |      messages may flow; or Reject: this is not who the ticket means
  | Abort <-----------> Abort |      a transfer failed at the other end; at most a saving of time
"""

from __future__ import annotations

from dataclasses import dataclass

import msgpack

from slipstream.kv_transfer.api.ticket import PeerId
from slipstream.kv_transfer.api.transport import RECORD_BYTES

MAX_NAME_BYTES = 128
MAX_REASON_CHARS = 80


class RecordError(ValueError):
    """Bytes that are not a record."""


@dataclass(frozen=True, slots=True)
class LinkHello:
    """The first record. `destination` is the worker that the sender, by its tickets, expects the listener to be."""

    source: PeerId
    source_rank: int
    destination: PeerId


@dataclass(frozen=True, slots=True)
class LinkWelcome:
    """Messages may be sent now; with `joins_layers`, they may have several layers of a slab."""

    joins_layers: bool


@dataclass(frozen=True, slots=True)
class Reject:
    reason: str


@dataclass(frozen=True, slots=True)
class Abort:
    transfer_id: int
    reason: str


Record = LinkHello | LinkWelcome | Reject | Abort


def check_peer(peer: PeerId) -> None:
    """Raises ValueError if the name or the epoch does not fit into a record."""
    if not 0 < len(peer.name.encode()) <= MAX_NAME_BYTES:
        raise ValueError(f"a peer's name must have 1 to {MAX_NAME_BYTES} bytes, got {peer.name!r}")
    if not 0 <= peer.epoch < 1 << 63:
        raise ValueError(f"a peer's epoch must be a non-negative 63-bit number, got {peer.epoch}")


def encode_record(record: Record) -> bytes:
    match record:
        case LinkHello(source, source_rank, destination):
            fields = ["hello", source.name, source.epoch, source_rank, destination.name, destination.epoch]
        case LinkWelcome(joins_layers):
            fields = ["welcome", joins_layers]
        case Reject(reason):
            fields = ["reject", reason[:MAX_REASON_CHARS]]
        case Abort(transfer_id, reason):
            fields = ["abort", transfer_id, reason[:MAX_REASON_CHARS]]
    encoded: bytes = msgpack.packb(fields)
    assert len(encoded) <= RECORD_BYTES
    return encoded


def decode_record(encoded: bytes) -> Record:
    """Decodes a record. Raises RecordError for anything that `encode_record` does not produce."""
    try:
        fields = msgpack.unpackb(encoded)
    except (ValueError, msgpack.UnpackException) as error:
        raise RecordError(f"no record: {error}") from error
    match fields:
        case ["hello", str(name), int(epoch), int(rank), str(to_name), int(to_epoch)]:
            return LinkHello(PeerId(name, epoch), rank, PeerId(to_name, to_epoch))
        case ["welcome", bool(joins_layers)]:
            return LinkWelcome(joins_layers)
        case ["reject", str(reason)]:
            return Reject(reason)
        case ["abort", int(transfer_id), str(reason)]:
            return Abort(transfer_id, reason)
    raise RecordError(f"no record: {fields!r:.100}")
