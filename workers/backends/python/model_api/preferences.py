"""Values that accompany a request to another model: where its outputs should lie, and the trace it belongs to."""

from __future__ import annotations

from enum import IntEnum


class MemoryType(IntEnum):
    TRITONSERVER_MEMORY_GPU = 0
    TRITONSERVER_MEMORY_CPU = 1


class PreferredMemory:
    """Outputs lie in host memory whatever is preferred; the server need not follow it."""

    __module__ = "c_python_backend_utils"
    __slots__ = ("device_id", "memory_type")

    def __init__(self, preferred_memory_type: MemoryType, preferred_device_id: int = 0) -> None:
        self.memory_type = MemoryType(preferred_memory_type)
        self.device_id = preferred_device_id


class InferenceTrace:
    """`context` is the trace context of OpenTelemetry, as JSON; "": none."""

    __module__ = "c_python_backend_utils"
    __slots__ = ("_context",)

    def __init__(self, context: str = "") -> None:
        self._context = context

    def get_context(self) -> str | None:
        return self._context or None
