"""The admin API's calls that show, add, remove and rename the models of a cluster."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

from fastapi import APIRouter
from fastapi import Path as InPath
from pydantic import BaseModel, Field

from slipstream.cluster.admin_api.any_text import allow_any_text
from slipstream.cluster.admin_api.caller import Caller
from slipstream.cluster.admin_api.models_port import ModelsPort
from slipstream.cluster.admin_api.strict_body import StrictBody
from slipstream.cluster.fleet.fleet_port import FleetError
from slipstream.cluster.repository.model_location import address_of
from slipstream.cluster.state.model_state import ModelPhase

ModelName = Annotated[str, InPath(description="A name from `GET /v1/models`.")]


class AddQuestion(StrictBody):
    config: str = Field(min_length=1, description="Absolute path, on the driver's machine, of a file with models.")


class AliasQuestion(StrictBody):
    add: list[str] = Field([], description="Further names of the model.")
    remove: list[str] = Field([], description="Further names that it loses.")


class ModelAnswer(BaseModel):
    name: str
    aliases: list[str]
    version: str
    state: ModelPhase
    reason: str = Field(description="Why it does not serve, if there is a reason to give.")
    num_prefill: int = Field(description="Prefill groups that are wanted.")
    num_decode: int
    num_ready: int = Field(description="Groups that serve.")
    path: str = Field(description="The address that it was downloaded from, or its directory.")
    config: str = Field(description="The file that the model was read from.")


class ModelsAnswer(BaseModel):
    models: list[ModelAnswer]
    added: list[str] = []

    @classmethod
    def of(cls, models: ModelsPort, added: list[str] | None = None) -> ModelsAnswer:
        return cls(
            models=[ModelAnswer(**asdict(one) | {"path": address_of(one.path)}) for one in models.models()],
            added=added or [],
        )


def model_routes(models: ModelsPort) -> APIRouter:
    allow_any_text()
    routes = APIRouter(prefix="/v1/models", tags=["models"])

    @routes.get("", summary="The models and how they are")
    async def show() -> ModelsAnswer:
        return ModelsAnswer.of(models)

    @routes.post("", summary="Add the models in a file; answers when they serve")
    async def add(question: AddQuestion, caller: Caller) -> ModelsAnswer:
        added = await models.add(Path(question.config), caller)
        return ModelsAnswer.of(models, added)

    @routes.post("/{name:any}/remove", summary="Drain a model and end its workers; answers when it is gone")
    async def remove(name: ModelName, caller: Caller) -> ModelsAnswer:
        await models.remove(name, caller)
        return ModelsAnswer.of(models)

    @routes.post("/{name:any}/aliases", summary="Give a model further names, or take some away")
    async def rename(name: ModelName, question: AliasQuestion, caller: Caller) -> ModelsAnswer:
        found = next((one for one in models.models() if one.name == name), None)
        if found is None:
            raise FleetError("unknown", "model", f"there is no model {name!r}")
        missing = [alias for alias in question.remove if alias not in found.aliases]
        if missing:
            raise FleetError("unknown", "remove", f"{', '.join(missing)} is no alias of {name}")
        kept = [alias for alias in found.aliases if alias not in question.remove]
        await models.set_aliases(name, list(dict.fromkeys((*kept, *question.add))), caller)
        return ModelsAnswer.of(models)

    return routes
