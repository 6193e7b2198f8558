"""Drives rolling updates in the driver: observes fleet and router, and performs the state machine's actions."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from slipstream.cluster.config.cluster_config import ClusterConfig
from slipstream.cluster.config.config_changes import changes_between
from slipstream.cluster.config.settings_file import ConfigError
from slipstream.cluster.fleet.author import OPERATOR, Author
from slipstream.cluster.fleet.fleet_port import FleetError
from slipstream.cluster.fleet.update_plan import (
    AddGroup,
    UpdateAction,
    UpdateEvent,
    UpdateOptions,
    UpdatePlan,
)
from slipstream.cluster.fleet.versioned_fleet import VersionedFleet, VersionRouter
from slipstream.cluster.ray.bundles import CannotPlace
from slipstream.cluster.repository.model_content import ModelContent, content_of, unused_name
from slipstream.cluster.repository.model_dir import model_problems
from slipstream.cluster.update.release import Release, other_text
from slipstream.cluster.update.rolling_update import RollingUpdate
from slipstream.cluster.update.update_port import UpdatePort
from slipstream.cluster.update.update_status import UpdateStatus
from slipstream.router.config.router_config import check_split
from slipstream.router.model_files.file_digest import DigestCache
from slipstream.router.protocol.messages import ROLES, Role

LOOK_EVERY_S = 0.5
LOOK_AT_FILES_EVERY_S = 5.0

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Running:
    machine: RollingUpdate
    old: Release
    new: Release
    changed: tuple[str, ...]
    other_text: str | None  # what of the text is another one in the new release
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[None] | None = None


class Updater:
    """Runs one update at a time. `load` reads a configuration in the same way as the present one was read, and raises
    ConfigError. `show` is called for every event, with the release that serves, or will serve again after a roll-back.
    `earlier` is the last event of the previous driver. No release is given one of the `used_names`. Times are
    `time.monotonic()`."""

    def __init__(
        self,
        release: Release,
        fleet: VersionedFleet,
        router: VersionRouter,
        load: Callable[[Path], ClusterConfig],
        show: Callable[[UpdateEvent, Release], None],
        earlier: UpdateEvent | None = None,
        used_names: Collection[str] = (),
    ) -> None:
        self.last_event = earlier  # the last one that was shown
        self._release = release
        self._previous: Release | None = None
        self._fleet = fleet
        self._router = router
        self._port = UpdatePort(fleet, router)
        self._load = load
        self._show = show
        self._latest: _Running | None = None
        self._is_reading = False  # whether it is reading a configuration, so that an update is about to begin
        self._cache = DigestCache.of_user()
        self.names = {release.version, *used_names}  # of all releases so far

    @property
    def is_active(self) -> bool:
        return self._latest is not None and self._latest.task is not None and not self._latest.task.done()

    @property
    def status(self) -> UpdateStatus | None:
        """The status of the latest update; None: there was none yet, or it did not exchange workers, so that
        `last_event` says all."""
        if self._latest is None or self.last_event not in self._latest.machine.events:
            return None
        machine = self._latest.machine
        plan, fleet = machine.plan, self._fleet.state()
        ready: dict[str, dict[str, int]] = {
            version: {role: fleet.num_ready(version, role) for role in ROLES} for version in (plan.old, plan.new)
        }
        return UpdateStatus(
            phase=machine.phase,
            old=plan.old,
            new=plan.new,
            config=self._latest.new.path,
            changed=self._latest.changed,
            split=machine.split,
            reason=machine.reason,
            ready=ready,
            wanted={role: plan.wanted[role] for role in ROLES},
            events=tuple(machine.events),
            figures=machine.figures,
            step=f"{machine.num_steps_begun} of {len(plan.options.shares)}" if plan.options.steps else "",
        )

    async def begin(
        self, path: Path, options: UpdateOptions, by: Author = OPERATOR, *, may_be_same: bool = False
    ) -> tuple[str, ...]:
        """Begins an update to the configuration at `path`, and returns the keys that differ. If only sizes or settings
        of the router differ, everything is done when this returns. Raises FleetError; then nothing has changed. That
        nothing differs is a mistake, unless it `may_be_same`."""
        self._check_idle()
        self._is_reading = True
        try:
            return await self._begin(path, options, by, may_be_same=may_be_same)
        finally:
            self._is_reading = False

    async def _begin(self, path: Path, options: UpdateOptions, by: Author, *, may_be_same: bool) -> tuple[str, ...]:
        try:
            config = await asyncio.to_thread(self._load, path)
        except ConfigError as error:
            raise FleetError("invalid", "config", str(error)) from None
        return await self._begin_with(config, path, options, by, may_be_same=may_be_same)

    async def begin_version(self, folder: Path, options: UpdateOptions, by: Author) -> tuple[str, ...]:
        """Begins an update to the numbered folder of another version, with the configuration as it is. Raises
        FleetError; then nothing has changed."""
        self._check_idle()
        self._is_reading = True
        try:
            config = self._release.config
            model = replace(config.model, path=str(folder), version=folder.name)
            config = replace(config, model=model)
            problem = await asyncio.to_thread(lambda: next(model_problems(folder, config), None))
            if problem is not None:
                key, sentence = problem
                raise FleetError("invalid", ".".join(map(str, key)), f"{'.'.join(map(str, key))}: {sentence}")
            return await self._begin_with(config, Path(self._release.path), options, by)
        finally:
            self._is_reading = False

    @property
    def served_folder(self) -> Path | None:
        """The folder of the version that serves, if the model has one for each version."""
        model = self._release.config.model
        folder = Path(model.path)
        is_numbered = folder.name == str(model.version) and folder.name.isascii() and folder.name.isdigit()
        return folder if is_numbered else None

    async def _begin_with(
        self, config: ClusterConfig, path: Path, options: UpdateOptions, by: Author, *, may_be_same: bool = False
    ) -> tuple[str, ...]:
        old = self._release
        changes = changes_between(old.config, config)
        if changes.restart:
            keys = ", ".join(changes.restart)
            raise FleetError("invalid", "config", f"{path}: a new start is needed to change {keys}")
        changed = (*changes.rolled, *changes.sizes, *changes.live)
        content = await asyncio.to_thread(_read_content, config)
        is_other = content.digest != old.content.digest
        if is_other and not changes.rolled:
            changed = ("model", *changed)  # the same path, but other files
        if changes.rolled or is_other:
            num_now = self._fleet.state().num
            wanted: dict[Role, int] = {
                role: pool.replicas if f"{role}.replicas" in changes.sizes else num_now(role)
                for role, pool in config.pools()
            }
            name = unused_name(content.name, self.names)
            release = Release(name, config, str(path), content)
            other = await self._add_text(release, options)
            self.names.add(name)
            try:
                self._start(release, options, wanted, changed, by, other)
            except FleetError:
                if other is not None:
                    with contextlib.suppress(OSError):
                        await self._router.remove_text(name)
                raise
        elif changed:
            await self._take_up(Release(old.version, config, str(path), content))
            for role, pool in config.pools():
                if f"{role}.replicas" in changes.sizes:
                    await self._fleet.scale(role, pool.replicas)
            text = f"{path} taken up without an exchange of workers: {', '.join(changed)}"
            self._tell(UpdateEvent(time.monotonic(), "done", text, by))
        elif not may_be_same:
            raise FleetError("invalid", "config", f"{path}: nothing differs from what runs")
        return changed

    def set_split(self, split: dict[str, float], by: Author = OPERATOR) -> None:
        """Changes the split of the update under way. Raises FleetError."""
        running = self._latest
        if running is None or not self.is_active:
            raise FleetError("conflict", "split", "no update is under way")
        try:
            check_split(split)
        except ValueError as error:
            raise FleetError("invalid", "split", str(error)) from None
        try:
            running.machine.set_split(split, time.monotonic(), by)
        except ValueError as error:
            raise FleetError("conflict", "split", str(error)) from None
        running.wake.set()

    async def roll_back(self, by: Author = OPERATOR) -> None:
        """Rolls back the update that is under way; if there is none, updates back to what served before. Raises
        FleetError, also if that cannot be loaded any more."""
        running = self._latest
        if running is not None and self.is_active and not running.machine.is_over:
            await self._look_at_files(running)
            try:
                running.machine.roll_back(time.monotonic(), "the operator asked for it", by)
            except ValueError as error:
                raise FleetError("conflict", "update", str(error)) from None
            running.wake.set()
            return
        self._check_idle()
        if self._previous is None or running is None:
            raise FleetError("conflict", "update", "there is no earlier version to go back to")
        gone = await asyncio.to_thread(self._previous.files_gone, self._cache)
        if gone is not None:
            reason = f"version {self._previous.version} cannot be loaded any more: {gone}"
            raise FleetError("conflict", "update", reason)
        self._check_idle()  # another update may have begun meanwhile
        self._is_reading = True
        try:
            other = await self._add_text(self._previous, UpdateOptions())
        finally:
            self._is_reading = False
        plan = running.machine.plan
        options = replace(plan.options, canary_percent=None, is_automatic=False, steps=(), mirror_percent=None)
        self._start(self._previous, options, dict(plan.initial), running.changed, by, other)

    async def until_idle(self) -> UpdateEvent | None:
        """The last event, once no update is under way."""
        while self._latest is not None and self._latest.task is not None and not self._latest.task.done():
            await asyncio.wait([self._latest.task])
        return self.last_event

    async def close(self) -> None:
        """Stops driving; the update is left as it is."""
        if self._latest is not None and self._latest.task is not None:
            self._latest.task.cancel()
            await asyncio.gather(self._latest.task, return_exceptions=True)

    def _check_idle(self) -> None:
        if self.is_active or self._is_reading:
            raise FleetError("conflict", "update", "an update is under way")

    async def _add_text(self, new: Release, options: UpdateOptions) -> str | None:
        """If text means other tokens to the new version than to the one that serves, the router is to tokenise for each
        of them. Returns what is another one. Raises FleetError; then nothing has changed."""
        other = await asyncio.to_thread(other_text, self._release, new.config, new.content, self._cache)
        if other is None:
            return None
        if options.mirror_percent is not None:
            reason = f"{new.config.model.path} has another {other} than what runs, and copies are made of tokens"
            raise FleetError("invalid", "mirror", f"model.path: {reason}")
        try:
            await self._router.add_text(new.version, new.config.model, new.content.manifest)
        except ValueError as error:
            raise FleetError("invalid", "config", f"model.path: {error}") from None
        except OSError as error:
            reason = f"the router has to read another {other}, and does not answer: {error}"
            raise FleetError("unavailable", "update", reason) from None
        return other

    def _start(
        self,
        new: Release,
        options: UpdateOptions,
        wanted: dict[Role, int],
        changed: Sequence[str],
        by: Author,
        other: str | None,
    ) -> None:
        """`other` is what of the text is another one in the new release."""
        old, fleet = self._release, self._fleet.state()
        try:
            self._add_to_fleet(new)
        except CannotPlace as error:
            raise FleetError("invalid", "config", str(error)) from None
        self._add_to_fleet(old)  # groups that are added meanwhile are of this version
        self._fleet.is_held = True
        manifests = [old.content.manifest, *([new.content.manifest] if other is None else [])]
        self._router.expect_files(manifests)
        plan = UpdatePlan(
            old.version,
            new.version,
            wanted={role: wanted[role] for role in ROLES},
            initial={role: fleet.num(role) for role in ROLES},
            options=options,
        )
        running = _Running(RollingUpdate(plan, time.monotonic(), by), old, new, tuple(changed), other)
        self._latest = running
        running.task = asyncio.create_task(self._drive(running), name=f"update to {new.version}")
        running.task.add_done_callback(self._ended)
        self._tell(running.machine.events[0])  # before the caller is answered: the next driver has to know of it

    async def _drive(self, running: _Running) -> None:
        machine, num_shown = running.machine, 1  # the first event was shown at the start
        looked_s = -math.inf
        try:
            while True:
                if time.monotonic() - looked_s >= LOOK_AT_FILES_EVERY_S:
                    await self._look_at_files(running)
                    looked_s = time.monotonic()
                seen = await self._port.look(machine.plan.new)
                actions = machine.step(self._fleet.state(), seen.loads, seen.split, time.monotonic(), seen.mirror)
                for action in actions:
                    await self._perform(machine, action)
                num_to_show = len(machine.events) - machine.is_over  # the last event is shown when everything is done
                for event in machine.events[num_shown:num_to_show]:
                    self._tell(event)
                num_shown = num_to_show
                is_done = (seen.split, seen.mirror) == (machine.split, machine.mirror)
                if machine.is_over and seen.loads is not None and is_done:
                    break
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(running.wake.wait(), LOOK_EVERY_S)
                running.wake.clear()
            await self._conclude(running)
        finally:
            self._fleet.is_held = False

    async def _conclude(self, running: _Running) -> None:
        """Ends an update: the version that is gone is forgotten, and the other one is the newest."""
        is_done = running.machine.phase == "done"
        stays, gone = (running.new, running.old) if is_done else (running.old, running.new)
        with contextlib.suppress(FleetError):
            self._fleet.forget_version(gone.version)
        self._add_to_fleet(stays)
        if running.other_text is not None:
            with contextlib.suppress(OSError):  # the next router begins with it
                await (self._router.adopt_text if is_done else self._router.remove_text)(running.new.version)
        self._router.expect_files([stays.content.manifest])
        if is_done:
            self._previous = running.old
            await self._take_up(running.new)
        self._fleet.is_held = False  # before it is shown, so that the number of wanted groups is known with it
        self._tell(running.machine.events[-1])

    def _tell(self, event: UpdateEvent) -> None:
        log.info("update: %s", event.text)
        self.last_event = event
        self._show(event, self._release)

    async def _take_up(self, release: Release) -> None:
        self._release = release
        self._add_to_fleet(release)
        with contextlib.suppress(OSError):  # the next router will start with it
            await self._router.follow(release.config)

    def _add_to_fleet(self, release: Release) -> None:
        self._fleet.add_version(release.version, release.config, release.content.manifest)

    async def _look_at_files(self, running: _Running) -> None:
        """Whether groups of the old version can still be started."""
        running.machine.old_files_gone = await asyncio.to_thread(running.old.files_gone, self._cache)

    async def _perform(self, machine: RollingUpdate, action: UpdateAction) -> None:
        try:
            await self._port.perform(action)
        except FleetError as error:
            log.warning("update: %s: %s", action.reason, error.reason)
            if isinstance(action, AddGroup) and not machine.is_over:
                machine.give_up(time.monotonic(), error.reason)

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("the update has ended with a bug; the cluster stays as it is", exc_info=error)


def _read_content(config: ClusterConfig) -> ModelContent:
    """Reads every byte, so that no change is missed. Raises FleetError."""
    try:
        return content_of(config, is_fresh=True)
    except (OSError, ValueError) as error:
        raise FleetError("invalid", "config", f"model.path: {error}") from None
