"""Divides the requests to the models of a repository between their versions (`TensorVersionsPort`)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from slipstream.cluster.fleet.author import Author
from slipstream.cluster.fleet.fleet_port import FleetError
from slipstream.cluster.fleet.update_plan import UpdateOptions
from slipstream.cluster.history.change_log import ChangeLog
from slipstream.cluster.models.served_models import ServedModels
from slipstream.cluster.state.state_file import StateFile
from slipstream.cluster.supervisor.managed_router import ManagedRouter
from slipstream.cluster.update.tensor_rollout import LostRollout, TensorRollout
from slipstream.router.config.tensor_versions_config import TensorMirrorConfig, TensorVersionsConfig
from slipstream.router.status.tensor_versions_status import TensorVersionsStatus

NO_ROUTES = TensorVersionsConfig()
Routes = TensorVersionsConfig
LOOK_EVERY_S = 0.5


@dataclass(frozen=True, slots=True)
class Promotion:
    rollout: TensorRollout
    task: asyncio.Task[None]


class TensorVersions:
    """What has been decided is in the configuration as it is served, so that the next router and the next driver go on
    with it."""

    def __init__(self, router: ManagedRouter, models: ServedModels, state_file: StateFile, changes: ChangeLog) -> None:
        self._router = router
        self._models = models
        self._state_file = state_file
        self._changes = changes
        self._promotions: dict[str, Promotion] = {}
        now_s = time.monotonic()
        self._lost = {model: LostRollout(line, now_s) for model, line in state_file.state.promotions.items()}

    async def status(self, model: str) -> TensorVersionsStatus | None:
        if not self._models.config.repository.is_on:
            return None
        try:
            return await self._router.tensor_versions(model)
        except OSError as error:  # TimeoutError is one
            raise FleetError("unavailable", "model", f"the router does not answer: {error}") from None

    def routes(self, model: str) -> TensorVersionsConfig:
        return self._models.config.repository.versions.get(model, NO_ROUTES)

    def progress(self, model: str) -> TensorRollout | LostRollout | None:
        found = self._promotions.get(model)
        return self._lost.get(model) if found is None else found.rollout

    async def promote(self, model: str, version: str, options: UpdateOptions, by: Author) -> None:
        before = self._promotions.get(model)
        if before is not None and not before.task.done():
            raise FleetError("conflict", "model", f"a version of {model} is being promoted already")
        await self._check_serve(model, "version", [version])
        old = await self._served_before(model, version)
        rollout = TensorRollout(old, version, options)
        task = asyncio.create_task(self._drive(model, rollout, by), name=f"promote {model} {version}")
        self._promotions[model] = Promotion(rollout, task)
        await asyncio.wait([task], timeout=LOOK_EVERY_S)  # the first step

    async def close(self) -> None:
        """What is promoted keeps the share that it has."""
        for promotion in self._promotions.values():
            promotion.task.cancel()
        await asyncio.gather(*(one.task for one in self._promotions.values()), return_exceptions=True)

    async def _served_before(self, model: str, version: str) -> str:
        """The version that has the requests, or has had them. Raises FleetError."""
        routes, status = self.routes(model), await self.status(model)
        for found in (routes.only, routes.before):
            if found not in ("", version):
                return found
        others = [one.version for one in status.versions if one.version != version] if status is not None else []
        if not others:
            raise FleetError("conflict", "version", f"no other version of {model} serves")
        return max(others, key=int)

    async def _drive(self, model: str, rollout: TensorRollout, by: Author) -> None:
        while not rollout.is_over:
            now_s = time.monotonic()
            with suppress(FleetError):  # the router will answer again
                if (status := await self.status(model)) is not None:
                    split = rollout.look(now_s, status)
                    if split is not None:
                        self._remember(model, rollout)
                        author = by._replace(reason=rollout.events[-1].text)
                        await self._change(model, "version", partial(Routes.with_split, split=split), author)
                        continue
            await asyncio.sleep(LOOK_EVERY_S)

    def _remember(self, model: str, rollout: TensorRollout | None) -> None:
        """For the next driver. The file is written with the split."""
        self._lost.pop(model, None)
        promotions = self._state_file.state.promotions
        promotions.pop(model, None)
        if rollout is not None and not rollout.is_over:
            promotions[model] = rollout.events[-1].text

    async def set_split(self, model: str, split: dict[str, float], by: Author) -> None:
        await self._check_serve(model, "split", [version for version, share in split.items() if share > 0])
        await self._change(model, "split", lambda routes: routes.with_split(split), by, ends_promotion=True)

    async def set_mirror(self, model: str, version: str, percent: float | None, by: Author) -> None:
        if percent is not None:
            await self._check_serve(model, "version", [version])

        def changed(routes: Routes) -> Routes:
            return routes.with_mirror(None if percent is None else TensorMirrorConfig(version, percent))

        await self._change(model, "mirror", changed, by)

    async def roll_back(self, model: str, by: Author) -> None:
        await self._change(model, "update", Routes.rolled_back, by, ends_promotion=True)

    def _end_promotion(self, model: str) -> None:
        """An operator decides otherwise. What has ended before is not shown any more."""
        self._remember(model, None)
        promotion = self._promotions.get(model)
        if promotion is not None and promotion.task.done():
            del self._promotions[model]
        elif promotion is not None:
            promotion.task.cancel()
            promotion.rollout.end(time.monotonic(), "cut short: the split was changed")

    async def _check_serve(self, model: str, field: str, versions: list[str]) -> None:
        """A version that does not serve may be a slip of the pen. Raises FleetError."""
        status = await self.status(model)
        serving = [] if status is None else [one.version for one in status.versions]
        for version in versions:
            if version not in serving:
                there = ", ".join(serving) or "none"
                raise FleetError("invalid", field, f"version {version!r} of {model} does not serve; there are: {there}")

    async def _change(
        self,
        model: str,
        field: str,
        change: Callable[[Routes], Routes],
        by: Author,
        *,
        ends_promotion: bool = False,
    ) -> None:
        before = self.routes(model)
        try:
            now = change(before)
        except ValueError as error:
            raise FleetError("conflict" if field == "update" else "invalid", field, str(error)) from None
        if ends_promotion:
            self._end_promotion(model)
        self._models.set_tensor_versions(model, now)
        self._state_file.write()
        await self._router.set_tensor_versions(model, now)
        self._changes.note(by, "split", model, in_words(before), in_words(now), model=model)


def in_words(routes: TensorVersionsConfig) -> str:
    split = ", ".join(f"{version}={share:g}" for version, share in (routes.split or {}).items())
    mirror = f"{routes.mirror.percent:g} % mirrored to {routes.mirror.version}" if routes.mirror is not None else ""
    return "; ".join(filter(None, (split or "the highest version", mirror)))
