"""The models that a host has downloaded, for all its processes.

PATH/<model>/<version>/             a complete version: it appears by a rename and never changes
PATH/<model>/<version>.part/        being downloaded; continued after a cut
PATH/<model>/<version>.lock         held by the process that downloads it; others wait for it
PATH/<model>/<digest>.asked         the name of the version that an address and a number last led to
PATH/<model>/<version>/.in-use      locked (shared) by processes that use it; its time is that of the last use
"""

from __future__ import annotations

import fcntl
import os
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from xxhash import xxh3_64_hexdigest

from slipstream.router.model_files.cache.cache_room import IN_USE_FILE, SIZE_FILE, make_room
from slipstream.router.model_files.cache.version_download import (
    PART_SUFFIX,
    SHOW_EVERY_S,
    DownloadFailed,
    DownloadProgress,
    Show,
    VersionDownload,
)
from slipstream.router.model_files.cache.version_plan import VersionPlan
from slipstream.router.model_files.model_origin import ORIGIN_FILE, ModelOrigin
from slipstream.router.model_files.sources.weights_source import WeightsSource
from slipstream.router.model_files.sources.weights_url import WeightsUrl
from slipstream.router.process.cache_folder import cache_folder

GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class HostCache:
    """`path` is the folder (None: `slipstream/models` in the user's cache directory), `max_gib` how large it may grow
    (None: without limit)."""

    path: str | None = None
    max_gib: float | None = None

    def directory_of(self, origin: ModelOrigin) -> Path:
        """Where a version is, if it is there."""
        url = WeightsUrl.parse(origin.url)
        assert url is not None
        return self._root / url.slug / (f"{origin.version}-{origin.folder}" if origin.folder else origin.version)

    def find(self, plan: VersionPlan) -> Path | None:
        """The directory of a version that is there, which is marked as used; None if it is not."""
        directory = self._directory(plan)
        return directory if self._is_complete(plan, directory) else None

    def note(self, url: WeightsUrl, number: str | None, directory: Path) -> None:
        """Remembers where an address led to, for `last`."""
        with suppress(OSError):
            part = directory.parent / f".{os.getpid()}.asked.part"
            part.write_text(directory.name, "ascii")
            part.replace(self._asked(url, number))

    def last(self, url: WeightsUrl, number: str | None) -> Path | None:
        """The directory that an address last led to, if it is there."""
        try:
            directory = self._root / url.slug / self._asked(url, number).read_text("ascii")
        except OSError:
            return None
        if ModelOrigin.read(directory) is None:
            return None
        with suppress(OSError):
            os.utime(directory / IN_USE_FILE)
        return directory

    def fetch(self, source: WeightsSource, plan: VersionPlan, show: Show) -> Path:
        """The directory of a version, after downloading it if it is not there, or after another process has. Raises
        SourceError, and what `show` raises to end a download; then there is nothing under the version's name."""
        directory = self._directory(plan)
        part = directory.with_name(f"{directory.name}.part")
        try:
            while not self._is_complete(plan, directory):
                directory.parent.mkdir(parents=True, exist_ok=True)
                with locked(directory.with_name(f"{directory.name}.lock"), plan, part, show):
                    if not self._is_complete(plan, directory):
                        self._download(source, plan, directory, part, show)
        except OSError as error:
            where = error.filename or directory
            raise DownloadFailed(
                f"{plan.url}: cannot be kept in model_cache.path: {where}: {error.strerror or error}"
            ) from None
        return directory

    def _download(self, source: WeightsSource, plan: VersionPlan, directory: Path, part: Path, show: Show) -> None:
        if directory.exists():  # files were removed from it or cut: what is left is verified again
            shutil.rmtree(part, ignore_errors=True)
            directory.rename(part)
            (part / ORIGIN_FILE).unlink(missing_ok=True)
            for path in (part / plan.local_name(file) for file in plan.files):
                if path.exists():
                    path.rename(path.with_name(path.name + PART_SUFFIX))
        num_there = DownloadProgress(plan, part).num_bytes
        make_room(self._root, self._max_bytes, plan, num_there, part)
        VersionDownload(source, plan, part).run(show)
        (part / SIZE_FILE).unlink()
        (part / IN_USE_FILE).touch()
        self._origin(plan).write(part)
        part.rename(directory)

    def _is_complete(self, plan: VersionPlan, directory: Path) -> bool:
        origin = ModelOrigin.read(directory)
        if origin is None:
            return False
        try:
            if any((directory / plan.local_name(file)).stat().st_size != file.num_bytes for file in plan.files):
                return False
        except FileNotFoundError:
            return False
        with suppress(OSError):  # of a read-only cache
            os.utime(directory / IN_USE_FILE)
            if origin != self._origin(plan):
                self._origin(plan).write(directory)
        return True

    def _origin(self, plan: VersionPlan) -> ModelOrigin:
        return ModelOrigin(str(plan.url), plan.version, plan.folder, self.path, self.max_gib)

    def _directory(self, plan: VersionPlan) -> Path:
        return self.directory_of(self._origin(plan))

    def _asked(self, url: WeightsUrl, number: str | None) -> Path:
        return self._root / url.slug / f"{xxh3_64_hexdigest(f'{url} {number}'.encode())}.asked"

    @property
    def _root(self) -> Path:
        """Raises DownloadFailed for a user without a home."""
        folder = cache_folder()
        try:
            root = Path(self.path).expanduser() if self.path is not None else folder and folder / "models"
        except RuntimeError:
            root = None
        if root is None:
            raise DownloadFailed("there is no home directory for downloaded models; set model_cache.path")
        return root

    @property
    def _max_bytes(self) -> int | None:
        return None if self.max_gib is None else int(self.max_gib * GIB)


@contextmanager
def in_use(directory: Path) -> Iterator[bool]:
    """Keeps a version of the cache from being removed meanwhile. Yields False if it is gone, or is no such version."""
    try:
        file = (directory / IN_USE_FILE).open("rb")
    except OSError:
        yield False
        return
    with file:
        with suppress(OSError):  # of a file system without locks
            fcntl.flock(file, fcntl.LOCK_SH)
            os.utime(directory / IN_USE_FILE)
        yield (directory / IN_USE_FILE).exists()  # it may have been removed before it was locked


@contextmanager
def locked(path: Path, plan: VersionPlan, part: Path, show: Show) -> Iterator[None]:
    """Holds the lock of a version, after showing how far the process is that had it."""
    with path.open("ab") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            waiting = threading.Thread(target=fcntl.flock, args=(lock, fcntl.LOCK_EX), daemon=True)
            waiting.start()
            progress = DownloadProgress(plan, part)
            while waiting.is_alive():
                waiting.join(SHOW_EVERY_S)
                show(f"{progress.text()} (by another process)")
        yield
