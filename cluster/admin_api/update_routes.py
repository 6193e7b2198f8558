"""The admin API's calls that update a cluster."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import BaseModel, Field

from slipstream.cluster.admin_api.caller import Caller
from slipstream.cluster.admin_api.strict_body import StrictBody
from slipstream.cluster.fleet.fleet_port import FleetError
from slipstream.cluster.fleet.tensor_versions_port import TensorVersionsPort, VersionProgress
from slipstream.cluster.fleet.update_plan import Phase, UpdateEvent, UpdateOptions
from slipstream.cluster.update.updater import Updater
from slipstream.cluster.update.updaters import Updaters
from slipstream.router.config.tensor_versions_config import TensorVersionsConfig
from slipstream.router.status.tensor_versions_status import TensorVersionsStatus

DEFAULTS = UpdateOptions()


class UpdateQuestion(StrictBody):
    config: str = Field(min_length=1, description="Absolute path of a configuration on the driver's machine.")
    surge: int = Field(DEFAULTS.surge, description="Groups of each role more than wanted, for a while.")
    max_unavailable: int = Field(DEFAULTS.max_unavailable, description="Groups of each role fewer than wanted.")
    split: float | None = Field(None, description="Percent of new requests for the new version, which then waits.")
    auto: bool = Field(False, description="Go on, or back, by what is seen of the new version at that split.")
    canary_s: float = Field(DEFAULTS.canary_s, description="With auto: look at it for so long at least.")
    min_requests: int = Field(DEFAULTS.min_requests, description="With auto: and at so many ended requests.")
    mirror: float | None = Field(
        None, description="Percent of requests that are copied to it first; it gets no others."
    )
    steps: list[float] = Field([], description="Percents that it is tried at one after the other, as 5, 25, 50, 100.")
    tolerance_percent: float = Field(
        DEFAULTS.tolerance_percent, description="With auto or steps: by how much its TTFT and ITL may be longer."
    )
    start_timeout_s: float = Field(DEFAULTS.start_timeout_s, description="In which a new group must be ready.")

    def options(self) -> UpdateOptions:
        """The options in the question. Raises FleetError that names a bad field."""
        try:
            return UpdateOptions(
                surge=self.surge,
                max_unavailable=self.max_unavailable,
                canary_percent=self.split,
                is_automatic=self.auto,
                canary_s=self.canary_s,
                min_requests=self.min_requests,
                start_timeout_s=self.start_timeout_s,
                steps=tuple(self.steps),
                mirror_percent=self.mirror,
                tolerance_percent=self.tolerance_percent,
            )
        except ValueError as error:
            name, _, _ = str(error).partition(" ")
            raise FleetError("invalid", name, str(error)) from None


class SplitQuestion(StrictBody):
    weights: dict[str, float] = Field(min_length=1, description="Shares by version, of any sum.")


class MirrorQuestion(StrictBody):
    version: str = Field(min_length=1, description="Of a model of the repository: which version gets the copies.")
    percent: float | None = Field(description="Of the requests that are copied; null: none any more.")


class PromoteQuestion(StrictBody):
    version: str = Field(min_length=1, description="Of a model of the repository.")
    steps: list[float] = Field(min_length=1, description="Percents that it gets one after the other: 5, 25, 50, 100.")
    canary_s: float = Field(DEFAULTS.canary_s, description="How long a step lasts at least.")
    min_requests: int = Field(DEFAULTS.min_requests, description="How many requests it gets at least in a step.")
    tolerance_percent: float = Field(DEFAULTS.tolerance_percent, description="By how much it may be slower.")

    def options(self) -> UpdateOptions:
        """Raises FleetError that names a bad field."""
        try:
            return UpdateOptions(
                steps=tuple(self.steps),
                canary_s=self.canary_s,
                min_requests=self.min_requests,
                tolerance_percent=self.tolerance_percent,
            )
        except ValueError as error:
            raise FleetError("invalid", str(error).partition(" ")[0], str(error)) from None


class EventAnswer(BaseModel):
    ago_s: float
    phase: Phase
    text: str


def events_of(events: Iterable[UpdateEvent]) -> list[EventAnswer]:
    now_s = time.monotonic()
    return [EventAnswer(ago_s=round(now_s - e.at_s, 1), phase=e.phase, text=e.text) for e in events]


class UpdateAnswer(BaseModel):
    is_active: bool
    line: str = Field(description="All in one line, for people.")
    phase: Phase | None = None
    old: str = ""
    new: str = ""
    config: str = ""
    changed: list[str] = Field(default=[], description="Keys of the configuration that differ.")
    split: dict[str, float] | None = Field(default=None, description="Null: by the size of the pools.")
    reason: str = Field(default="", description="Of a roll-back.")
    ready: dict[str, dict[str, int]] = Field(default={}, description="Groups that serve, by version and role.")
    wanted: dict[str, int] = {}
    events: list[EventAnswer] = []
    figures: str = Field(default="", description="How the new version compares with the old one, for people.")
    step: str = Field(default="", description="Of a canary in steps: which one, as in 2 of 3.")

    @classmethod
    def of(cls, updater: Updater) -> UpdateAnswer:
        status = updater.status
        if status is None:
            last = updater.last_event
            if last is None:
                return cls(is_active=False, line="no update yet")
            return cls(is_active=False, line=last.text, phase=last.phase)
        return cls(
            is_active=updater.is_active,
            line=status.line,
            phase=status.phase,
            old=status.old,
            new=status.new,
            config=status.config,
            changed=list(status.changed),
            split=status.split,
            reason=status.reason,
            ready=status.ready,
            wanted=status.wanted,
            step=status.step,
            figures=status.figures,
            events=events_of(status.events),
        )

    @classmethod
    def of_tensors(
        cls, status: TensorVersionsStatus, routes: TensorVersionsConfig, progress: VersionProgress | None
    ) -> UpdateAnswer:
        """Of a model of the repository: its versions are there, and divide the requests. `progress` is that of the one
        that is promoted."""
        shown = cls(is_active=False, line=status.line, old=routes.before, new=routes.only, split=routes.split)
        if progress is None:
            return shown
        text = progress.events[-1].text if progress.events else "begins"
        return shown.model_copy(
            update={
                "is_active": not progress.is_over,
                "line": f"{text}; {status.line}",
                "phase": progress.phase,
                "step": progress.step,
                "events": events_of(progress.events),
            }
        )


ModelName = Annotated[str | None, Query(description="Which model, where the cluster has several.")]


class VersionedTensors:
    """The models of a repository whose versions a call may be about. `port` None: there is no repository."""

    def __init__(self, port: TensorVersionsPort | None, updaters: Updaters) -> None:
        self._port = port
        self._updaters = updaters

    async def of(self, model: str | None) -> tuple[TensorVersionsPort, str] | None:
        """None: the call is about the updates of a language model. If the repository has one of the same name, that is
        so while it is updated, and where the repository has one version of it only."""
        if self._port is None or model is None:
            return None
        has_pools = model in self._updaters
        if has_pools and self._updaters.of(model).is_active:
            return None
        status = await self._port.status(model)
        if status is None or (has_pools and len(status.versions) < 2):
            return None
        return self._port, model

    async def answer(self, port: TensorVersionsPort, model: str, *, shows_progress: bool = True) -> UpdateAnswer:
        """After a change by an operator, a promotion is of no interest."""
        status = await port.status(model) or TensorVersionsStatus(())
        return UpdateAnswer.of_tensors(status, port.routes(model), port.progress(model) if shows_progress else None)


def update_routes(updaters: Updaters, tensors: TensorVersionsPort | None = None) -> APIRouter:
    """`tensors` are the versions of the models of a repository, if there is one."""
    routes = APIRouter(prefix="/v1/update", tags=["update"])
    versioned = VersionedTensors(tensors, updaters)

    @routes.get("", summary="The update that is under way, or the last one; or the versions of a tensor model")
    async def show(model: ModelName = None) -> UpdateAnswer:
        if (found := await versioned.of(model)) is not None:
            return await versioned.answer(*found)
        return UpdateAnswer.of(updaters.of(model))

    @routes.post("", status_code=202, summary="Update to another model version or configuration")
    async def begin(question: UpdateQuestion, caller: Caller, model: ModelName = None) -> UpdateAnswer:
        updater = updaters.of(model)
        changed = await updater.begin(Path(question.config), question.options(), caller)
        if updater.is_active:
            return UpdateAnswer.of(updater)
        line = f"taken up without an exchange of workers: {', '.join(changed)}"
        return UpdateAnswer(is_active=False, line=line, changed=list(changed), config=question.config)

    @routes.post("/split", status_code=202, summary="Another split while a version is tried, or of a tensor model")
    async def split(question: SplitQuestion, caller: Caller, model: ModelName = None) -> UpdateAnswer:
        if (found := await versioned.of(model)) is not None:
            port, name = found
            await port.set_split(name, question.weights, caller)
            return await versioned.answer(port, name, shows_progress=False)
        updater = updaters.of(model)
        updater.set_split(question.weights, caller)
        return UpdateAnswer.of(updater)

    @routes.post("/mirror", status_code=202, summary="Copy requests to a version of a tensor model, or end that")
    async def mirror(question: MirrorQuestion, caller: Caller, model: ModelName = None) -> UpdateAnswer:
        if (found := await versioned.of(model)) is None:
            updaters.of(model)
            reason = "requests to a language model are copied by an update (mirror)"
            raise FleetError("conflict", "model", reason)
        port, name = found
        await port.set_mirror(name, question.version, question.percent, caller)
        return await versioned.answer(port, name)

    @routes.post("/promote", status_code=202, summary="Give a version of a tensor model one share after the other")
    async def promote(question: PromoteQuestion, caller: Caller, model: ModelName = None) -> UpdateAnswer:
        if (found := await versioned.of(model)) is None:
            updaters.of(model)
            raise FleetError("conflict", "model", "a language model is updated in steps by an update (steps)")
        port, name = found
        await port.promote(name, question.version, question.options(), caller)
        return await versioned.answer(port, name)

    @routes.post("/rollback", status_code=202, summary="Back to the version that served before")
    async def rollback(caller: Caller, model: ModelName = None) -> UpdateAnswer:
        if (found := await versioned.of(model)) is not None:
            port, name = found
            await port.roll_back(name, caller)
            return await versioned.answer(port, name, shows_progress=False)
        updater = updaters.of(model)
        await updater.roll_back(caller)
        return UpdateAnswer.of(updater)

    return routes
