"""What the tensor API serves, by either protocol."""

from __future__ import annotations

from dataclasses import dataclass, field

from slipstream.router.api.kserve.log_control import LogControl
from slipstream.router.api.kserve.server_facts import SERVER_NAME
from slipstream.router.api.kserve.trace_control import TraceControl
from slipstream.router.tensor_memory.client_regions import ClientRegions
from slipstream.router.tensors.infer_service import InferService, RepositoryControl


@dataclass(frozen=True, slots=True)
class KServeServer:
    """One for a router process. `name` is that of the server in its metadata."""

    service: InferService
    repository: RepositoryControl
    client_regions: ClientRegions = field(default_factory=ClientRegions)
    traces: TraceControl = field(default_factory=TraceControl)
    logs: LogControl = field(default_factory=LogControl)
    name: str = SERVER_NAME
