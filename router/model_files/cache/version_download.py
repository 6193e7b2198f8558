"""The download of a version into a folder of its own, which another process can continue after a cut.

FOLDER/model.safetensors.incomplete     what has arrived so far; continued at its end
FOLDER/model.safetensors                complete, with the right size and checksum
"""

from __future__ import annotations

import errno
import os
import shutil
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from slipstream.router.model_files.cache.version_plan import VersionPlan
from slipstream.router.model_files.sources.weights_source import (
    SourceError,
    SourceFile,
    SourceUnreachable,
    WeightsSource,
)

NUM_FILES_AT_ONCE = 4
NUM_TRIES = 5  # in a row without a further byte
FIRST_PAUSE_S = 0.5  # doubled at each try
SHOW_EVERY_S = 0.2
PART_SUFFIX = ".incomplete"

Show = Callable[[str], None]


class DownloadFailed(SourceError):  # noqa: N818 - reads as the sentence it carries
    """The files cannot be kept here, or are not those that the source lists."""


class VersionDownload:
    """Fetches the files of a plan into `folder`. `show` is called several times a second with how far it is."""

    def __init__(self, source: WeightsSource, plan: VersionPlan, folder: Path):
        self._source = source
        self._plan = plan
        self._folder = folder
        self._stop = threading.Event()
        self._waiting = deque(sorted(plan.files, key=lambda file: -file.num_bytes))
        self._error: Exception | None = None

    def run(self, show: Show) -> None:
        """Raises SourceError, and OSError if the folder cannot be written. What has arrived stays there, unless the
        disk is full."""
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            threads = [threading.Thread(target=self._work, daemon=True) for _ in range(NUM_FILES_AT_ONCE)]
            progress = DownloadProgress(self._plan, self._folder)
            for thread in threads:
                thread.start()
            for thread in threads:
                while thread.is_alive():
                    thread.join(SHOW_EVERY_S)
                    show(progress.text())
        finally:
            self._stop.set()  # if it was interrupted
        if self._error is None:
            return
        if isinstance(self._error, OSError) and self._error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            shutil.rmtree(self._folder, ignore_errors=True)
            reason = self._error.strerror
            raise DownloadFailed(f"{self._plan.url}: cannot be kept in {self._folder.parent}: {reason}") from None
        raise self._error

    def _work(self) -> None:
        """Takes one file after the other until there are none, or one of them fails."""
        while not self._stop.is_set():
            try:
                file = self._waiting.popleft()
            except IndexError:
                return
            try:
                self._fetch(file)
            except Exception as error:  # `run` raises it
                self._error = self._error or error
                self._stop.set()

    def _fetch(self, file: SourceFile) -> None:
        path = self._folder / self._plan.local_name(file)
        if path.exists():
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(path.name + PART_SUFFIX)
        checksum = self._plan.checksum(self._source, file)
        copy = self._source.local_copy(file)
        if copy is not None and _size(copy) == file.num_bytes:  # else the rest would be written into it
            _link_or_copy(copy, part)
        for is_last in (False, True):
            self._receive(file, part)
            if self._stop.is_set():
                return
            if checksum is None or checksum.matches(part) is not False:
                break
            part.unlink()  # the next try begins anew
            if is_last:
                kind = checksum.kind.partition("_")[0]
                raise DownloadFailed(f"{self._plan.url}: {file.name} has twice arrived with a wrong {kind} checksum")
        _to_disk(part)
        part.rename(path)

    def _receive(self, file: SourceFile, part: Path) -> None:
        """Continues a file to its end. Raises SourceError after several tries."""
        num_tries = 0
        while not self._stop.is_set():
            before = _size(part)
            if before > file.num_bytes:
                part.unlink()
                before = 0
            try:
                self._append(file, part, before)
                now = _size(part)
                if now == file.num_bytes:
                    return
                raise SourceUnreachable(f"{self._plan.url}: {file.name} ended after {now} bytes of {file.num_bytes}")
            except SourceUnreachable:
                num_tries = 1 if _size(part) > before else num_tries + 1
                if num_tries >= NUM_TRIES:
                    raise
                self._stop.wait(FIRST_PAUSE_S * 2 ** (num_tries - 1))

    def _append(self, file: SourceFile, part: Path, begin: int) -> None:
        with part.open("ab", buffering=0) as opened:
            if begin == file.num_bytes:
                return
            with self._source.stream(file, begin, file.num_bytes) as pieces:
                for piece in pieces:
                    if self._stop.is_set():  # the file may be another process's by now
                        return
                    view = memoryview(piece)
                    while view:  # a file without buffer may take a part
                        view = view[opened.write(view) :]


class DownloadProgress:
    """How far a download is, by the sizes of its files: also one that another process makes."""

    def __init__(self, plan: VersionPlan, folder: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._plan = plan
        self._paths = [folder / plan.local_name(file) for file in plan.files]
        self._clock = clock
        self._begin_s, self._begin_bytes = clock(), self.num_bytes

    @property
    def num_bytes(self) -> int:
        """What has arrived."""
        return sum(_size(path) or _size(path.with_name(path.name + PART_SUFFIX)) for path in self._paths)

    def text(self) -> str:
        now, elapsed_s = self.num_bytes, self._clock() - self._begin_s
        rate = (now - self._begin_bytes) / elapsed_s if elapsed_s > 0 else 0.0
        text = f"fetching {self._plan.url.shown}: {in_words(now)} of {in_words(self._plan.num_bytes)}"
        return f"{text}, {in_words(int(rate))}/s" if rate > 0 else text


def in_words(num_bytes: int) -> str:
    """A size as operators read it."""
    if num_bytes >= 1 << 30:
        return f"{num_bytes / (1 << 30):.1f} GiB"
    return f"{num_bytes / (1 << 20):.1f} MiB"


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _link_or_copy(copy: Path, part: Path) -> None:
    """A link takes no room. If neither works, the file is fetched."""
    part.unlink(missing_ok=True)
    try:
        os.link(copy.resolve(), part)
    except OSError:
        with suppress(OSError):
            shutil.copyfile(copy, part)


def _to_disk(path: Path) -> None:
    """A complete version survives a power cut."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
