"""Whether an output is written as JSON or in binary."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class OutputForm:
    """How the outputs are written: those in `binary` after the JSON head, the others in it, or, for those that were
    not named, as `is_binary` says."""

    is_binary: bool = False
    binary: dict[str, bool] = field(default_factory=dict)

    def is_binary_of(self, name: str) -> bool:
        return self.binary.get(name, self.is_binary)
