"""The state of an update, for operators."""

from __future__ import annotations

from dataclasses import dataclass

from slipstream.cluster.fleet.update_plan import Phase, UpdateEvent
from slipstream.cluster.update.rolling_update import split_text
from slipstream.router.protocol.messages import ROLES


@dataclass(frozen=True, slots=True)
class UpdateStatus:
    """The update that is under way, or the last one. `changed` are the keys of the configuration that differ. `ready`
    is the number of groups that serve, by version and role, out of `wanted`. `step` is the one that a canary is at, as
    `2 of 3`. `figures` says how the new version compares with the old one."""

    phase: Phase
    old: str
    new: str
    config: str
    changed: tuple[str, ...]
    split: dict[str, float] | None
    reason: str
    ready: dict[str, dict[str, int]]
    wanted: dict[str, int]
    events: tuple[UpdateEvent, ...]
    step: str = ""
    figures: str = ""

    @property
    def line(self) -> str:
        """The state in one line for people."""
        counts = ", ".join(f"{self.ready[self.new][role]} of {self.wanted[role]} {role}" for role in ROLES)
        shares = f", split {split_text(self.split)}" if self.split else ""
        why = f": {self.reason}" if self.reason else ""
        step = f" step {self.step}" if self.step and self.phase == "canary" else ""
        phase = f"{self.phase.replace('_', ' ')}{step}"
        figures = f"; {self.figures}" if self.figures and self.phase in ("mirror", "canary") else ""
        return f"{self.old} -> {self.new}: {phase}{why} ({counts} serve the new version{shares}{figures})"
