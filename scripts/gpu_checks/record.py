"""What a check has found, written down line by line: a run may be cut off at any moment."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Row:
    """One result. `share` is what was reached of what could be (a floor or a ceiling of the same run), `target` the
    least share wanted. A row without a value is a remark, or a failure if `failed`."""

    step: str
    name: str
    value: float | None = None
    unit: str = ""
    share: float | None = None
    target: float | None = None
    note: str = ""
    failed: bool = False

    @property
    def misses_target(self) -> bool:
        return self.share is not None and self.target is not None and self.share < self.target

    def line(self) -> str:
        number = "" if self.value is None else f"{self.value:.4g} {self.unit}"
        share = "" if self.share is None else f"{self.share:.2f}"
        target = "" if self.target is None else f"(target {self.target:.2f}{', missed' if self.misses_target else ''})"
        state = "FAILED " if self.failed else ""
        return f"{self.step:9} {self.name:58} {number:>14} {share:>6} {target} {state}{self.note}".rstrip()


class Book:
    """The file that rows are appended to; each is on the disk and on the screen before the next is begun. A process
    that is killed may leave a torn line, which is passed over."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def add(self, row: Row) -> None:
        print(row.line(), flush=True)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(row)) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def rows(self, step: str | None = None) -> list[Row]:
        """Those of one step, or all."""
        if not self.path.exists():
            return []
        lines = self.path.read_text(encoding="utf-8").split("\n")
        rows = [Row(**json.loads(line)) for line in lines if line.startswith("{") and line.endswith("}")]
        return [row for row in rows if step in (None, row.step)]

    def mend(self) -> None:
        """Ends a torn line, so that the next row gets one of its own. To be called when a process has been killed."""
        if self.path.exists() and not self.path.read_bytes().endswith(b"\n"):
            with self.path.open("a", encoding="utf-8") as file:
                file.write("\n")


def as_markdown(rows: Sequence[Row], facts: dict[str, str], titles: dict[str, str]) -> str:
    """A page: the facts of the run, then a table a step, in the order of `titles`."""
    lines = ["# The GPU check", "", *(f"- {name}: {value}" for name, value in facts.items())]
    for step, title in titles.items():
        of_step = [row for row in rows if row.step == step]
        if not of_step:
            continue
        lines += ["", f"## {title}", "", "| what | result | share | target | |", "|---|---|---|---|---|"]
        for row in of_step:
            number = "" if row.value is None else f"{row.value:.4g} {row.unit}"
            share = "" if row.share is None else f"{row.share:.2f}"
            target = "" if row.target is None else f"{row.target:.2f}"
            remark = "; ".join(filter(None, ["failed" if row.failed else "", row.note])).replace("|", "/")
            lines.append(f"| {row.name} | {number} | {share} | {target} | {remark} |")
    return "\n".join(lines) + "\n"
