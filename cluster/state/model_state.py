"""What the state file has of each model: what its next driver needs to bring it up again, and what operators are
shown."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal, Protocol

from slipstream.cluster.fleet.fleet_port import MemberState
from slipstream.cluster.fleet.update_plan import ENDED, Phase
from slipstream.router.protocol.messages import Role

# cold: no decode worker is wanted, and requests wait for one. leaving: it is being removed.
ModelPhase = Literal["serving", "cold", "loading", "leaving", "failed"]
DOWN: frozenset[MemberState] = frozenset({"dead", "failed", "pending", "silent"})


class StateOfModel(Protocol):
    """Of a model's part of the state. `config` is the file that it was read from. `wanted` is how many groups of each
    role are to be there; empty: as the configuration says. `version` is what is served of it is called, `content` the
    digest of that (`ModelContent`), `names` those of all its versions so far. `update` is the latest line about the
    latest update, `update_phase` what that was in then. `files` has, by version, which of its files is another one now,
    `tried` the watched folders that were updated to, with their stamps. `asked` is what a repository's model asked for
    (`WantedModel` as JSON), where the model is served for that; empty: an operator wants it."""

    model: str
    config: str
    wanted: dict[Role, int]
    version: str
    content: str
    names: list[str]
    update: str
    update_phase: Phase | None
    files: dict[str, str]
    tried: dict[str, str]
    is_leaving: bool
    asked: str


@dataclass(slots=True)
class ModelState:
    """The state of a model that is not the first of its cluster (`StateOfModel`)."""

    model: str
    config: str = ""
    wanted: dict[Role, int] = field(default_factory=dict)
    version: str = ""
    content: str = ""
    names: list[str] = field(default_factory=list)
    update: str = ""
    update_phase: Phase | None = None
    files: dict[str, str] = field(default_factory=dict)
    tried: dict[str, str] = field(default_factory=dict)
    is_leaving: bool = False
    asked: str = ""


def carry_on(state: StateOfModel, before: StateOfModel) -> None:
    """Takes over what the previous driver has found out or decided. An update that was under way is not gone on with:
    what served before it serves again."""
    state.wanted, state.names = dict(before.wanted), list(before.names)
    state.version, state.content = before.version, before.content
    state.update, state.update_phase = before.update, before.update_phase
    state.tried, state.is_leaving, state.asked = dict(before.tried), before.is_leaving, before.asked
    if before.update_phase is not None and before.update_phase not in ENDED:
        state.update = f"cut short by the end of the driver; what served before serves again ({before.update})"
        state.update_phase = "cut_short"


class MemberOfModel(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def role(self) -> str: ...
    @property
    def state(self) -> MemberState: ...
    @property
    def detail(self) -> str: ...


def phase_of(members: Iterable[MemberOfModel], is_leaving: bool) -> tuple[ModelPhase, str]:
    """The state of a model with these worker groups, and the reason if there is one to give."""
    decode = [member for member in members if member.role == "decode"]
    if is_leaving:
        return "leaving", ""
    if any(member.state == "ready" for member in decode):
        return "serving", ""
    if not decode:
        return "cold", ""
    failed = [member for member in decode if member.state in ("failed", "dead")]
    if len(failed) == len(decode):
        return "failed", f"{failed[0].name}: {failed[0].detail}"
    waiting = next((member for member in decode if member.state in DOWN), None)
    return "loading", f"{waiting.name}: {waiting.detail}" if waiting is not None else ""
