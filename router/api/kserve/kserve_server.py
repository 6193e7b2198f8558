"""What the tensor API serves, by either protocol."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from slipstream.router.api.kserve.log_control import LogControl
from slipstream.router.api.kserve.server_facts import SERVER_NAME
from slipstream.router.api.kserve.trace_control import TraceControl
from slipstream.router.tensor_memory.client_regions import ClientRegions
from slipstream.router.tensors.infer_service import InferService, RepositoryControl


def event_that_is_set() -> asyncio.Event:
    event = asyncio.Event()
    event.set()
    return event


async def keep_nothing() -> None:
    """The settings of clients end with this router."""


@dataclass(frozen=True, slots=True)
class KServeServer:
    """One for a router process. Calls about models wait until those of the start are `loaded`. `name` is that of the
    server in its metadata. Whatever changes `client_regions`, `traces` or `logs` for a client awaits `keep_settings`
    before it answers."""

    service: InferService
    repository: RepositoryControl
    client_regions: ClientRegions = field(default_factory=ClientRegions)
    traces: TraceControl = field(default_factory=TraceControl)
    logs: LogControl = field(default_factory=LogControl)
    keep_settings: Callable[[], Awaitable[None]] = keep_nothing
    name: str = SERVER_NAME
    loaded: asyncio.Event = field(default_factory=event_that_is_set)
