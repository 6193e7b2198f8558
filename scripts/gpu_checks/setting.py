"""The settings of all steps of a check."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from gpu_checks.record import Book, Row


@dataclass(frozen=True, slots=True)
class Setting:
    """`is_dry`: tiny shapes on the CPU, to see that everything runs; the figures mean nothing."""

    book: Book
    device: torch.device
    is_dry: bool
    tune: bool = False
    wheels: Path | None = None  # folder of wheel files for what is not installed

    def add(
        self,
        step: str,
        name: str,
        value: float | None = None,
        unit: str = "",
        *,
        share: float | None = None,
        target: float | None = None,
        note: str = "",
        failed: bool = False,
    ) -> None:
        self.book.add(Row(step, name, value, unit, share, target, note, failed))
