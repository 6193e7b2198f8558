"""What processes have found out about model directories, kept in the user's cache directory.

It depends on the files that they read, on the versions of torch and transformers and on our code; the key has all of
them. So results of old versions stay until they are removed: those that were not used for `UNUSED_DAYS`, and the ones
used longest ago where there are more than `MOST_RESULTS`.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
import time
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

from slipstream.router.model_files.file_digest import UNUSED_DAYS
from slipstream.router.process.cache_folder import cache_folder

MOST_RESULTS = 1000  # of some kilobytes to a megabyte each
LIBRARIES = ("transformers", "torch")
OWN_CODE = ("directory", "general")  # folders of models/, whose code runs in such a process


class ResultCache:
    """Results by key. Without a folder that can be written to, it keeps nothing."""

    def __init__(self) -> None:
        folder = cache_folder()
        self._folder = None if folder is None else folder / "descriptions"

    def get(self, key: str) -> bytes | None:
        if self._folder is None:
            return None
        try:
            path = self._folder / f"{key}.json"
            content = path.read_bytes()
            os.utime(path)  # so that it counts as used
        except OSError:
            return None
        return content

    def put(self, key: str, content: bytes) -> None:
        if self._folder is None:
            return
        with contextlib.suppress(OSError):
            self._folder.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile("wb", dir=self._folder, delete=False) as file:
                file.write(content)
            os.replace(file.name, self._folder / f"{key}.json")
            self._remove_unused(self._folder)

    @staticmethod
    def _remove_unused(folder: Path) -> None:
        """Also removes what a killed writer has left, once it is as old."""
        used_s = {}
        for path in folder.iterdir():
            with contextlib.suppress(OSError):  # another process has removed it
                used_s[path] = path.stat().st_mtime
        oldest_s = time.time() - UNUSED_DAYS * 24 * 3600
        latest_first = sorted(used_s, key=lambda path: -used_s[path])
        for number, path in enumerate(latest_first):
            if number >= MOST_RESULTS or used_s[path] < oldest_s:
                path.unlink(missing_ok=True)


def key_of(what: str, parts: Iterable[bytes]) -> str:
    """A digest of `parts`, of the libraries' versions and of our own code that runs there."""
    digest = hashlib.sha256(what.encode())
    versions = " ".join(_version(name) for name in LIBRARIES)
    models = Path(__file__).resolve().parents[1]
    own = (path.read_bytes() for folder in OWN_CODE for path in sorted((models / folder).rglob("*.py")))
    for part in (versions.encode(), *own, *parts):
        digest.update(len(part).to_bytes(8, "little") + part)
    return digest.hexdigest()


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""
