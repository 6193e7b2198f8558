"""The Hello of a worker that a test makes up."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from slipstream.kv_transfer.api.ticket import PeerId, TransferAddress
from slipstream.router.protocol.messages import PROTOCOL_VERSION, Hello, Role

PLAIN = Hello(
    version=PROTOCOL_VERSION,
    token="",
    worker=PeerId("d", 1),
    role="decode",
    model="m",
    tp=1,
    pid=1,
    addresses=(TransferAddress("127.0.0.1", 1),),
    page_tokens=16,
    num_pages=100,
    max_slots=4,
    max_queued_tokens=1000,
    max_model_len=4096,
)


def make_hello(worker: PeerId | str = "d", role: Role = "decode", **fields: Any) -> Hello:
    """A greeting like `PLAIN`, but for the `fields`. A worker that is given by name is in its first epoch."""
    peer = worker if isinstance(worker, PeerId) else PeerId(worker, 1)
    return replace(PLAIN, worker=peer, role=role, **fields)
