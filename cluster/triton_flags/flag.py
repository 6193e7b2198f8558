"""A flag of Triton's server, and what it means here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

# bare: it has no value, and stands for true.
FlagKind = Literal["text", "number", "fraction", "switch", "bare"]
FlagValue = str | int | float | bool


class FlagError(ValueError):
    """A value that a flag cannot have; one sentence that begins with the flag."""


@dataclass(frozen=True, slots=True)
class Flag:
    """`name` is without dashes. `setting` is the key of the configuration that the value goes to, multiplied by
    `scale`; "": `flag_settings` knows what it stands for, or it has no effect, for the reason `without_effect`. One
    that is `refused` for a reason may be given with a value of false. A flag that `is_repeated` may be given several
    times. The value of one that `has_secret` ends with `=SECRET`. `help` is shown for flags that scripts use often."""

    name: str
    kind: FlagKind = "text"
    setting: str = ""
    scale: float = 1.0
    is_repeated: bool = False
    has_secret: bool = False
    without_effect: str = ""
    refused: str = ""
    help: str = ""

    @property
    def key(self) -> str:
        """Its name as that of a parameter."""
        return self.name.replace("-", "_")

    def scaled(self, value: FlagValue) -> FlagValue:
        """The value as that of the setting."""
        if self.scale == 1.0 or isinstance(value, str):
            return value
        return value * self.scale
