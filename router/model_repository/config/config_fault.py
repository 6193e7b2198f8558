"""What is wrong with a configuration: where, and why in Triton's words, which clients and operators search for."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from slipstream.router.tensors.infer_error import InferErrorCode

CODE_WORDS = {
    InferErrorCode.UNKNOWN: "Unknown",
    InferErrorCode.INTERNAL: "Internal",
    InferErrorCode.NOT_FOUND: "Not found",
    InferErrorCode.INVALID_ARG: "Invalid argument",
    InferErrorCode.UNAVAILABLE: "Unavailable",
    InferErrorCode.UNSUPPORTED: "Unsupported",
    InferErrorCode.ALREADY_EXISTS: "Already exists",
    InferErrorCode.CANCELLED: "Cancelled",
}


@dataclass(frozen=True, slots=True)
class ConfigFault:
    """`field` is a path in the configuration, as in `dynamic_batching.priority_levels`."""

    field: str
    text: str
    code: InferErrorCode = InferErrorCode.INVALID_ARG

    @property
    def status(self) -> str:
        """The text after the name of its code: the form in which the index gives reasons."""
        return f"{CODE_WORDS[self.code]}: {self.text}"


class ModelConfigError(Exception):
    """A configuration is refused."""

    def __init__(self, fault: ConfigFault) -> None:
        super().__init__(fault.text)
        self.fault = fault


def raise_first(faults: Iterable[ConfigFault]) -> None:
    """Raises ModelConfigError if there is a fault."""
    for fault in faults:
        raise ModelConfigError(fault)
