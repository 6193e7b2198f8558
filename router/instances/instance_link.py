"""One instance, as its owner commands it."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Protocol

import orjson

from slipstream.router.instances.frames.frame_connection import FrameConnection
from slipstream.router.instances.frames.frame_reader import Json
from slipstream.router.instances.frames.tensor_places import PayloadWriter, PlaceReader
from slipstream.router.instances.instance_messages import places_wanted, request_fields, response_fields
from slipstream.router.instances.instance_owner import InstanceOwner
from slipstream.router.instances.instance_receiver import InstanceReceiver
from slipstream.router.instances.instance_session import InstanceSession
from slipstream.router.instances.messages import (
    ExecuteRequest,
    InitializeInstance,
    InstanceEnd,
    InstanceResponse,
    StartInstance,
)
from slipstream.router.tensor_memory.mapped_files import MappedFiles
from slipstream.router.tensor_memory.region_pool import INLINE_BYTES, RegionPool
from slipstream.router.tensor_memory.stale_files import files_prefix

log = logging.getLogger(__name__)


class LinkKeeper(Protocol):
    """What has the links: the port."""

    def stop_instance(self, link: InstanceLink, grace_s: float) -> None:
        """Ends the process of an instance."""


class InstanceLink:
    """From `InstancePort.launch` until `InstanceOwner.ended`. Commands to an instance that is not
    connected are dropped: its owner hears `connected` or `ended` next.

        launched -> connected <-> disconnected
            +-----------+--------------+-------> ended

    `host` is the name of the host that has it, "" as long as none has. `stop_grace_s` is set once it is stopped."""

    def __init__(
        self, start: StartInstance, owner: InstanceOwner, keeper: LinkKeeper, pool: RegionPool, files: MappedFiles
    ) -> None:
        self.start = start
        self.host = ""
        self.stop_grace_s: float | None = None
        self._is_ended = False
        self._owner = owner
        self._keeper = keeper
        self._pool = pool
        self._files = files
        self._session: InstanceSession | None = None

    @property
    def is_connected(self) -> bool:
        return self._session is not None

    @property
    def num_requests(self) -> int:
        """Given to the instance, and not over."""
        return len(self._session.requests) if self._session is not None else 0

    @property
    def num_lent(self) -> int:
        """Responses to its calls that it has not released."""
        return len(self._session.lent) if self._session is not None else 0

    def complete_config(self, config_json: bytes) -> None:
        self._send({"type": "complete_config", "config": orjson.Fragment(config_json)})

    def initialize(self, initialize: InitializeInstance) -> None:
        session = self._session
        self._send(
            {
                "type": "initialize",
                "args": initialize.args,
                "inline_bytes": INLINE_BYTES,
                "shares_memory": session is not None and session.shared_pool is not None,
                "outputs": initialize.outputs,
                "is_decoupled": initialize.is_decoupled,
            }
        )

    def execute(self, batch: int, requests: Sequence[ExecuteRequest]) -> None:
        """Inputs must stay valid until the request has ended. Those larger than 64 KiB that are not in shared memory
        are copied there."""
        session = self._session
        if session is None:
            return
        assert session.batch is None, f"{self.start.name} has one batch at a time"
        writer = PayloadWriter(session.shared_pool)
        fields = []
        for item in requests:
            into = places_wanted(item) if session.shared_pool is not None else None
            fields.append(request_fields(item, writer, into))
            session.requests.add(item.n, writer.take_leases(), into)
        session.batch = batch
        session.null_numbers = [item.n for item in requests if item.request is None]
        session.batch_numbers = [item.n for item in requests]
        head = {"type": "execute", "batch": batch, "requests": fields}
        session.connection.send(head, writer.parts, writer.num_bytes)

    def cancel(self, n: int) -> None:
        if self._session is not None and n in self._session.requests:
            self._send({"type": "cancel", "n": n})

    def call_response(self, call: int, response: InstanceResponse | None, *, is_final: bool) -> None:
        """Takes the response over: the link calls its `release` when the instance has read it."""
        session = self._session
        if session is None or call not in session.calls:
            if response is not None and response.release is not None:
                response.release()
            return
        writer = PayloadWriter(session.shared_pool, borrows=False)
        fields = None if response is None else response_fields(response, writer)
        head = {"type": "call_response", "call": call, "response": fields, "final": is_final}
        session.connection.send(head, writer.parts, writer.num_bytes)
        if is_final:
            session.calls.discard(call)
        if response is not None and fields is not None:
            places = [(place[0], place[1]) for _, _, _, place in fields["outputs"] if len(place) == 3]
            session.lent.add(places, response.release, writer.take_leases())

    def control_result(self, call: int, error: str | None, value: Json | bool | None = None) -> None:
        if self._session is not None and call in self._session.calls:
            self._session.calls.discard(call)
            self._send({"type": "control_result", "call": call, "error": error, "value": value})

    def finalize(self) -> None:
        """Lets the model finalize itself and the process end, without a time limit."""
        self._send({"type": "finalize"})

    def stop(self, grace_s: float) -> None:
        """`finalize`; the host kills the process after `grace_s`, and at once if it is not connected. Works at any time
        of its life. `ended` follows."""
        if self.stop_grace_s is None and not self._is_ended:
            self.stop_grace_s = grace_s
            self.finalize()
            self._keeper.stop_instance(self, grace_s if self.is_connected else 0.0)

    def connect(self, connection: FrameConnection, *, is_ready: bool, shares_memory: bool) -> None:
        """For the port: the instance has connected. An earlier connection is void."""
        if self._session is not None:
            self._session.connection.abort("the instance has connected again")
            self._lost(self._session, "it has connected again")
        session = InstanceSession(connection, self._pool if shares_memory else None)
        self._session = session
        places = PlaceReader(self._files, files_prefix(self.start.launch))
        connection.receiver = InstanceReceiver(session, self._owner, places, self._lost)
        if self.stop_grace_s is not None:
            self.finalize()
        else:
            self._owner.connected(is_ready=is_ready)

    def end(self, end: InstanceEnd) -> None:
        """For the port: the process is gone, or will never be there. Idempotent."""
        if self._is_ended:
            return
        self._is_ended = True
        session, self._session = self._session, None
        if session is not None:
            session.end()
            session.connection.abort("the process has ended")
        self._files.forget(files_prefix(self.start.launch))
        self._owner.ended(end)

    def _lost(self, session: InstanceSession, reason: str) -> None:
        session.end()
        self._files.forget(files_prefix(self.start.launch))  # it makes new ones for the next connection
        if session is self._session:
            log.info("instance %s on host %s: %s", self.start.name, self.host, reason)
            self._session = None
            self._owner.disconnected()

    def _send(self, head: Json) -> None:
        if self._session is not None:
            self._session.connection.send(head)
