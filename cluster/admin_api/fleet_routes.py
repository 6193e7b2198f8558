"""The admin API's calls that show and resize the worker groups of a cluster."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query
from pydantic import BaseModel, Field

from slipstream.cluster.admin_api.any_text import allow_any_text
from slipstream.cluster.admin_api.caller import Caller
from slipstream.cluster.admin_api.driver_parts import DriverParts, FleetView, one_model
from slipstream.cluster.admin_api.strict_body import StrictBody
from slipstream.cluster.config.pool_config import MAX_REPLICAS
from slipstream.cluster.fleet.fleet_port import FleetError, FleetMember, FleetState, MemberState
from slipstream.cluster.fleet.instance_counts_port import InstanceCountsPort
from slipstream.cluster.history.recorded_fleet import RecordedFleet
from slipstream.router.config.instance_counts_config import InstanceCountsConfig
from slipstream.router.protocol.messages import ROLES, Role
from slipstream.router.status.instances_status import InstancesStatus

WorkerName = Annotated[str, Path(description="A name from `GET /v1/fleet`, as decode-0.")]

ModelName = Annotated[str | None, Query(description="Which model, where the cluster has several.")]


class ScaleQuestion(StrictBody):
    model: str | None = Field(None, description="Which model, where the cluster has several.")
    role: Role
    replicas: int = Field(ge=0, le=MAX_REPLICAS, description="Groups that are wanted in this role; 0: none.")


class DrainQuestion(StrictBody):
    migrate: bool = Field(True, description="Move what runs there to other workers; else it runs on there to its end.")


class RoleQuestion(StrictBody):
    role: Role


class MoveQuestion(StrictBody):
    model: str
    role: Role | None = Field(None, description="Its role there; by default the one that it has.")


class InstancesQuestion(StrictBody):
    count: int | None = Field(None, description="How many there are to be; null: as the model's configuration says.")
    min: int | None = Field(None, description="With `max`: the bounds within which they follow the demand.")
    max: int | None = Field(None, description="The same as `min`: they do not follow it any more.")

    def counts(self, before: InstanceCountsConfig) -> InstanceCountsConfig:
        """Raises FleetError."""
        changed = {name: value for name, value in self if value is not None}
        try:
            return replace(before, **{"count": None, **changed})
        except ValueError as error:
            raise FleetError("invalid", "count", str(error)) from None


class InstancesAnswer(BaseModel):
    """Of one version of a model of a repository."""

    model: str
    version: str
    count: int = Field(description="Instances that are wanted.")
    hosts: dict[str, int] = Field(description="How many serve, by host.")
    min: int | None
    max: int | None = Field(description="Null: the number does not follow the demand.")
    is_changing: bool = Field(description="Some do not serve yet, or are still leaving.")
    latest: str = Field(description="The last change and its reason.")


class InstancesAnswers(BaseModel):
    versions: list[InstancesAnswer]

    @classmethod
    def of(cls, status: Sequence[InstancesStatus]) -> InstancesAnswers:
        return cls(versions=[InstancesAnswer(**asdict(one)) for one in status])


class MemberAnswer(BaseModel):
    name: str
    role: Role
    state: MemberState
    for_s: float = Field(description="Seconds that it has been in this state.")
    host: str
    version: str
    detail: str
    is_leaving: bool
    startup_s: list[tuple[str, float]] = Field(
        description="Stages of its last start or change of role or model, and seconds."
    )
    model: str

    @classmethod
    def of(cls, member: FleetMember, now_s: float) -> MemberAnswer:
        return cls(
            name=member.name,
            role=member.role,
            state=member.state,
            for_s=round(max(0.0, now_s - member.since_s), 3),
            host=member.host,
            version=member.version,
            detail=member.detail,
            is_leaving=member.is_leaving,
            startup_s=list(member.startup_s),
            model=member.model,
        )


class FleetAnswer(BaseModel):
    num_prefill: int = Field(description="Prefill groups that are wanted, those that leave not counted.")
    num_decode: int
    max_members: int | None
    is_changing: bool
    members: list[MemberAnswer]
    added: list[str] = Field(default=[], description="Names of groups that this call has begun to start.")
    warning: str | None = None

    @classmethod
    def of(cls, state: FleetState, added: list[str] | None = None, warning: str | None = None) -> FleetAnswer:
        now_s = time.monotonic()
        return cls(
            num_prefill=state.num_prefill,
            num_decode=state.num_decode,
            max_members=state.max_members,
            is_changing=state.is_changing,
            members=[MemberAnswer.of(member, now_s) for member in state.members],
            added=added or [],
            warning=warning,
        )


def fleet_routes(parts: DriverParts) -> APIRouter:
    fleet = parts.fleet
    allow_any_text()
    routes = APIRouter(prefix="/v1", tags=["fleet"])

    @routes.get("/fleet", summary="The worker groups and how they are")
    async def show(model: ModelName = None) -> FleetAnswer:
        return FleetAnswer.of(fleet.state() if model is None else fleet.of_model(model).state())

    @routes.get("/status", summary="The cluster: its processes, and the load as the router sees it")
    async def status() -> dict[str, Any]:
        names = fleet.models
        signals = {name: await parts.router.signals_to_show(name) for name in names}
        router = await parts.router.cluster_status()
        shown = {"router": router, "signals": signals[names[0]] if len(names) == 1 else None}
        return parts.state.public() | shown | ({"signals_by_model": signals} if len(names) > 1 else {})

    @routes.post("/fleet/scale", status_code=202, summary="Add or remove groups of a role")
    async def scale(question: ScaleQuestion, caller: Caller, model: ModelName = None) -> FleetAnswer:
        name = one_model(fleet, question.model or model)
        own = fleet.of_model(name)
        before = {member.name for member in own.state().members}
        await RecordedFleet(own, parts.changes, caller, name).scale(question.role, question.replicas)
        state = own.state()
        added = [member.name for member in state.members if member.name not in before]
        warning = _emptied(state, question.role)
        if added and warning is None:
            warning = await asyncio.to_thread(parts.memory_warning, _replicas(fleet))
        return FleetAnswer.of(state, added, warning)

    @routes.get("/instances", summary="The instances of tensor models")
    async def show_instances(model: str = "") -> InstancesAnswers:
        return InstancesAnswers.of(await instances_of(parts).status(model))

    @routes.post("/instances", status_code=202, summary="Set how many instances a tensor model has")
    async def set_instances(question: InstancesQuestion, caller: Caller, model: str) -> InstancesAnswers:
        port = instances_of(parts)
        await port.set_counts(model, question.counts(port.counts(model)), caller)
        return InstancesAnswers.of(await port.status(model))

    @routes.post("/workers/{name:any}/drain", status_code=202, summary="Empty a group and end it for good")
    async def drain(name: WorkerName, caller: Caller, question: DrainQuestion | None = None) -> FleetAnswer:
        own, member = fleet.of_worker(name), fleet.state().member(name)
        migrates = question.migrate if question is not None else True
        await RecordedFleet(own, parts.changes, caller, _model(member)).remove(name, migrate=migrates)
        state = own.state()
        return FleetAnswer.of(state, warning=_emptied(state, member.role) if member is not None else None)

    @routes.post("/workers/{name:any}/role", status_code=202, summary="Let a group serve the other role")
    async def switch(name: WorkerName, question: RoleQuestion, caller: Caller) -> FleetAnswer:
        own, member = fleet.of_worker(name), fleet.state().member(name)
        await RecordedFleet(own, parts.changes, caller, _model(member)).switch_role(name, question.role)
        state = own.state()
        return FleetAnswer.of(state, warning=_emptied(state, "prefill" if question.role == "decode" else "decode"))

    @routes.post("/workers/{name:any}/model", status_code=202, summary="Let a group go on with another model")
    async def move(name: WorkerName, question: MoveQuestion, caller: Caller) -> FleetAnswer:
        fleet.of_worker(name)
        member = fleet.state().member(name)
        before, role = _model(member), question.role or (member.role if member is not None else "decode")
        moved = await fleet.move(name, question.model, role)
        for model in (before, question.model):
            parts.changes.note(caller, "model", name, before, question.model, model=model)
        warnings = []
        if moved.why_new:
            warnings.append(f"{name} leaves, and {moved.name} starts in its place: {moved.why_new}")
        emptied = _emptied(fleet.of_model(before).state(), member.role) if member is not None else None
        if emptied is not None:
            warnings.append(f"{before}: {emptied}")
        return FleetAnswer.of(fleet.state(), [moved.name] if moved.why_new else None, "; ".join(warnings) or None)

    return routes


def instances_of(parts: DriverParts) -> InstanceCountsPort:
    """Raises FleetError."""
    if parts.instances is None:
        raise FleetError("conflict", "model", "this cluster serves no model repository")
    return parts.instances


def _model(member: FleetMember | None) -> str:
    return member.model if member is not None else ""


def _replicas(fleet: FleetView) -> dict[str, dict[Role, int]]:
    states = {name: fleet.of_model(name).state() for name in fleet.models}
    return {name: {role: state.num(role) for role in ROLES} for name, state in states.items()}


def _emptied(state: FleetState, role: Role) -> str | None:
    if state.num(role) > 0:
        return None
    if role == "decode":
        return "no decode worker is left: requests wait, for router.dispatch.queue_timeout_s at most"
    return "no prefill worker is left: decode workers compute prompts themselves"
