"""One connected instance host, as the port commands it."""

from __future__ import annotations

from typing import Protocol

from slipstream.router.instances.frames.frame_connection import FrameConnection
from slipstream.router.instances.frames.frame_reader import FrameError, Json, Payload
from slipstream.router.instances.host_messages import (
    HostHello,
    UsageReport,
    instance_end,
    instance_secret,
    start_fields,
    usage_of,
)
from slipstream.router.instances.messages import InstanceEnd, StartInstance


class HostKeeper(Protocol):
    """What has the hosts: the port."""

    def host_lost(self, host: HostLink, reason: str) -> None: ...

    def instance_ended(self, launch: str, end: InstanceEnd) -> None: ...


class HostLink:
    """From its hello until its connection is lost."""

    def __init__(self, hello: HostHello, connection: FrameConnection, token: str, keeper: HostKeeper) -> None:
        self.name = hello.name
        self.node_ip = hello.node_ip
        self.memory_id = hello.memory_id
        self.connection = connection
        self.usage = UsageReport()  # the latest
        self._token = token
        self._keeper = keeper

    def start(self, start: StartInstance) -> None:
        """Its end is reported to the port."""
        secret = instance_secret(self._token, start.launch)
        self.connection.send({"type": "start", "secret": secret, **start_fields(start)})

    def stop(self, launch: str, grace_s: float) -> None:
        self.connection.send({"type": "stop", "launch": launch, "grace_s": grace_s})

    def received(self, head: Json, payload: Payload) -> None:
        """Raises FrameError for what a host may not say."""
        match head["type"]:
            case "exited" | "start_failed":
                self._keeper.instance_ended(*instance_end(head))
            case "usage":
                self.usage = usage_of(head)
            case other:
                raise FrameError(f"a host does not say {other!r}")

    def lost(self, reason: str) -> None:
        self._keeper.host_lost(self, reason)
