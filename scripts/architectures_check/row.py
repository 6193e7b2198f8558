"""What was found out about one architecture."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Literal

Outcome = Literal["equal", "differs", "refused", "failed"]
ModelPath = Literal["native", "flat", "cached", ""]


@dataclass(frozen=True, slots=True)
class Result:
    """Of one variant; `why` is empty where it is equal."""

    outcome: Outcome
    why: str = ""


@dataclass(slots=True)
class Row:
    """`not_built` says why no tiny model could be made, `refused` why the engine does not serve it. `unsure` says how
    the reference contradicts itself with its cache; then it is the one without. `strength` are the figures of
    `strength.Strength`, `trial` says which of `tiny_weights.TRIALS` were drawn."""

    model_type: str
    architecture: str
    path: ModelPath = ""
    not_built: str = ""
    refused: str = ""
    unsure: str = ""
    strength: dict[str, int] = field(default_factory=dict)
    is_strong: bool = False
    trial: int = 0
    num_parameters: int = 0
    variants: dict[str, Result] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def is_equal(self) -> bool:
        """In every variant but those that are refused."""
        outcomes = [result.outcome for result in self.variants.values()]
        return "equal" in outcomes and not {"differs", "failed"} & set(outcomes)

    def lost(self, before: Row) -> list[str]:
        """Variants in which it was equal and is no longer."""
        return [
            name
            for name, result in before.variants.items()
            if result.outcome == "equal" and not (name in self.variants and self.variants[name].outcome == "equal")
        ]

    def as_json(self) -> str:
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str) -> Row:
        values = json.loads(text)
        values["variants"] = {name: Result(**result) for name, result in values["variants"].items()}
        return Row(**values)


Rows = dict[str, Row]  # by model type


def read_rows(path: Path) -> Rows:
    """The last row of each model type; none if there is no such file."""
    if not path.exists():
        return {}
    rows = [Row.from_json(line) for line in path.read_text().splitlines() if line.strip()]
    return {row.model_type: row for row in rows}


def write_rows(path: Path, rows: Rows) -> None:
    """Without times, so that the file changes only with what it says."""
    path.write_text("".join(replace(rows[name], seconds=0.0).as_json() + "\n" for name in sorted(rows)))
