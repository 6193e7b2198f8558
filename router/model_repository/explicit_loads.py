"""What clients have loaded and unloaded in control mode `explicit`, on disk: the next router of a cluster loads the
same. A file for each model; all methods block."""

from __future__ import annotations

import base64
import json
import logging
import os
import shutil
import stat
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ExplicitLoad:
    """What a client gave with a load."""

    config_json: str = ""
    files: Mapping[str, bytes] | None = None


@dataclass(frozen=True, slots=True)
class ExplicitUnload:
    """`versions` are those that were known of the model then, which the index still shows."""

    versions: tuple[str, ...] = ()


class ExplicitLoads:
    """`folder` is made when it is needed. Only this user may be able to write to it, because what it says is executed.
    A file that cannot be written is logged: the load counts all the same."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @classmethod
    def beside(cls, instances_path: Path) -> ExplicitLoads:
        """Those of a router that listens for instances at this path."""
        return cls(instances_path.with_suffix(".models"))

    def loaded(self, model: str, load: ExplicitLoad) -> None:
        files = {name: base64.b64encode(data).decode() for name, data in (load.files or {}).items()}
        self._write(model, {"model": model, "config": load.config_json, "files": files})

    def unloaded(self, model: str, versions: Sequence[str] = ()) -> None:
        self._write(model, {"model": model, "unloaded": list(versions)})

    def latest(self) -> dict[str, ExplicitLoad | ExplicitUnload]:
        """What was done last to each model."""
        found: dict[str, ExplicitLoad | ExplicitUnload] = {}
        if not self.folder.exists():
            return found
        try:
            check_own(self.folder)
        except OSError as error:
            log.warning("what clients have loaded before is not loaded again: %s", error)
            return found
        for path in sorted(self.folder.glob("*.json")):
            with suppress(OSError, ValueError, KeyError, TypeError):  # not one of ours
                said = json.loads(path.read_bytes())
                model = said["model"]
                found[model] = load_of(said) if "config" in said else unload_of(said)
        return found

    def forget(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)

    def _write(self, model: str, said: dict[str, object]) -> None:
        path = self.folder / f"{quote(model, safe='')}.json"
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            check_own(self.folder)
            part = path.with_suffix(".part")
            part.write_text(json.dumps(said), "utf-8")
            os.replace(part, path)
        except OSError as error:
            log.warning("the next router will not know what was done to model %r: %s", model, error)


def check_own(folder: Path) -> None:
    """Raises PermissionError if another user has made the folder or could write to it: it may lie where all do."""
    found = folder.lstat()
    is_ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()
    if not is_ours or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise PermissionError(f"{folder} is not a folder that only this user can write to")


def load_of(said: dict[str, Any]) -> ExplicitLoad:
    files = {name: base64.b64decode(data) for name, data in said["files"].items()}
    return ExplicitLoad(said["config"], files or None)


def unload_of(said: dict[str, Any]) -> ExplicitUnload:
    return ExplicitUnload(tuple(version for version in said.get("unloaded", ()) if str(version).isdecimal()))
