"""Room in a host's model cache: which versions go when another one comes.

PATH/.lock                          held while room is made
PATH/<model>/<version>.part/.size   how many bytes a download will have: others leave it the room
"""

from __future__ import annotations

import fcntl
import os
import shutil
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from slipstream.router.model_files.cache.version_download import DownloadFailed, in_words
from slipstream.router.model_files.cache.version_plan import VersionPlan

IN_USE_FILE = ".in-use"
SIZE_FILE = ".size"
RECENT_S = 300.0  # between the time when a version is there and the time when the first process uses it
UNUSED_PART_DAYS = 7  # after which a download that was cut is not continued
SPARE_BYTES = 64 << 20  # of the disk, which are left free


@dataclass(frozen=True, slots=True)
class CachedVersion:
    """A version or (`is_part`) a download, with the room that it will take. `used_s` is when it was last used, in
    seconds of Unix."""

    directory: Path
    num_bytes: int
    used_s: float
    is_part: bool


def make_room(root: Path, max_bytes: int | None, plan: VersionPlan, num_there: int, part: Path) -> None:
    """Removes the least recently used versions that no process uses, until `plan` fits into `max_bytes`, and makes the
    folder `part` for it, in which `num_there` bytes may already be. Raises DownloadFailed if there is no room, or not
    on the disk, and OSError."""
    root.mkdir(parents=True, exist_ok=True)
    with (root / ".lock").open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        _make_room(root, max_bytes, plan, num_there, part)
        part.mkdir(parents=True, exist_ok=True)
        (part / SIZE_FILE).write_text(str(plan.num_bytes), "ascii")


def _make_room(root: Path, max_bytes: int | None, plan: VersionPlan, num_there: int, part: Path) -> None:
    versions = sorted(_versions(root, part), key=lambda version: (not version.is_part, version.used_s))
    for version in versions:
        if version.is_part and time.time() - version.used_s > UNUSED_PART_DAYS * 24 * 3600:
            _remove(version)
    if max_bytes is not None:
        total = sum(version.num_bytes for version in versions) + plan.num_bytes
        for version in versions:
            if total <= max_bytes:
                break
            if _remove(version):
                total -= version.num_bytes
        if total > max_bytes:
            raise DownloadFailed(
                f"{plan.url}: needs {in_words(plan.num_bytes)}, and model_cache.max_gib leaves "
                f"{in_words(max(0, max_bytes - total + plan.num_bytes))} beside the versions that are in use"
            )
    needed = plan.num_bytes - num_there
    free = shutil.disk_usage(root).free
    if needed + SPARE_BYTES > free:
        raise DownloadFailed(
            f"{plan.url}: needs {in_words(needed)}, and the disk of {root} (model_cache.path) has {in_words(free)} free"
        )


def _versions(root: Path, without: Path) -> list[CachedVersion]:
    found = []
    for directory in root.glob("*/*"):
        if directory == without or not directory.is_dir():
            continue
        if directory.suffix == ".gone":
            shutil.rmtree(directory, ignore_errors=True)
            continue
        with suppress(OSError):  # another process removes it
            files = [path.stat() for path in directory.rglob("*") if path.is_file()]
            is_part = directory.suffix == ".part"
            stamps = [stat.st_mtime for stat in files] if is_part else [(directory / IN_USE_FILE).stat().st_mtime]
            num_bytes = sum(stat.st_size for stat in files)
            if is_part and (directory / SIZE_FILE).exists():
                num_bytes = max(num_bytes, int((directory / SIZE_FILE).read_text("ascii") or 0))
            found.append(CachedVersion(directory, num_bytes, max(stamps, default=0.0), is_part))
    return found


def _remove(version: CachedVersion) -> bool:
    """Whether it could be removed: not if a process uses it, downloads it, or is about to use it."""
    directory = version.directory
    lock = directory.with_suffix(".lock") if version.is_part else directory / IN_USE_FILE
    try:
        with lock.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not version.is_part and time.time() - os.fstat(file.fileno()).st_mtime < RECENT_S:
                return False
            gone = directory.with_name(f".{directory.name}.gone")
            directory.rename(gone)
    except OSError:
        return False
    shutil.rmtree(gone, ignore_errors=True)
    return True
