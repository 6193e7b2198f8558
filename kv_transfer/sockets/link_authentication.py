"""The first frames of a link, which prove that the other end speaks this version and knows the cluster's token.

    caller                               listener
      | greeting: version, proof, body --> |      the proof binds the body to the address that is called
      | <-- answer: version, proof, body   |      and this one to the caller's greeting

The token itself is never sent, and a proof made for one listener is worthless at another. But an attacker that reads
the traffic can replay it, so an untrusted network needs encryption underneath.
"""

from __future__ import annotations

import hmac

from slipstream.kv_transfer.api.ticket import TransferAddress

VERSION = b"slipstream kv 5 "
PROTOCOL_NAME = VERSION.decode().strip()  # workers send it to the router, which pairs only equal ones
PROOF_BYTES = 32


class LinkAuthenticator:
    """`token` is the secret of the cluster. It may be empty if everybody who can reach the port is trusted."""

    def __init__(self, token: str) -> None:
        self._key = token.encode() or b"no token"

    def greet(self, address: TransferAddress, body: bytes) -> bytes:
        """The caller's first frame."""
        return VERSION + self._proof(b"greeting", _spell(address), body) + body

    def check_greeting(self, address: TransferAddress, frame: bytes) -> bytes | None:
        """The body of a greeting for the listener at `address`; None if it is not valid."""
        return self._check(frame, b"greeting", _spell(address))

    def answer(self, greeting: bytes, body: bytes) -> bytes:
        """The listener's first frame."""
        return VERSION + self._proof(b"answer", greeting, body) + body

    def check_answer(self, greeting: bytes, frame: bytes) -> bytes | None:
        """The body of the answer to `greeting`; None if it is not valid."""
        return self._check(frame, b"answer", greeting)

    def socket_name(self, address: TransferAddress) -> str:
        """A name for a Unix socket of the listener at `address`, which only those who know the token can derive."""
        return self._proof(b"socket", _spell(address)).hex()

    def _check(self, frame: bytes, kind: bytes, context: bytes) -> bytes | None:
        if not frame.startswith(VERSION):
            return None
        end = len(VERSION) + PROOF_BYTES
        proof, body = frame[len(VERSION) : end], frame[end:]
        return body if hmac.compare_digest(proof, self._proof(kind, context, body)) else None

    def _proof(self, *parts: bytes) -> bytes:
        message = b"".join(len(part).to_bytes(4, "little") + part for part in parts)
        return hmac.digest(self._key, message, "sha256")


def _spell(address: TransferAddress) -> bytes:
    return f"{address.host} {address.port}".encode()
