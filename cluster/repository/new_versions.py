"""Decides when a numbered folder of a model is a new version to update to. The policy is pure; `folder_stamps` reads.

absent --a number above the one served--> seen --the same at the next look, and whole--> updated to --> served
                                           ^                                                     |
                                           '---- anything in it changes ---- failed <------------'
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from xxhash import xxh3_64

from slipstream.cluster.repository.model_dir import check_model_dir
from slipstream.cluster.repository.version_folders import version_numbers


class NewVersions:
    """`tried` are the stamps of the folders whose versions have failed, by path; the caller keeps them for the next
    driver. They are not tried again before they change."""

    def __init__(self, tried: dict[str, str]) -> None:
        self.tried = tried
        self._last: Mapping[Path, str] = {}  # the stamps at the last look

    def candidate(self, stamps: Mapping[Path, str], served: int) -> Path | None:
        """The folder to try: that of the highest number, if it is above the one that is served, has not been tried as
        it is, and has not changed since the last look."""
        before, self._last = self._last, dict(stamps)
        highest = max(stamps, key=lambda folder: int(folder.name), default=None)
        if highest is None or int(highest.name) <= served:
            return None
        stamp = stamps[highest]
        return highest if before.get(highest) == stamp and self.tried.get(str(highest)) != stamp else None

    def failed(self, folder: Path, stamp: str) -> None:
        """The version in the folder, as it was with that stamp, was refused or rolled back."""
        self.tried[str(folder)] = stamp


def folder_stamps(base: Path) -> dict[Path, str]:
    """A stamp for each numbered folder below `base`, from the names, sizes and times of all files in it. Raises
    OSError."""
    return {folder: _stamp(folder) for number in version_numbers(base) for folder in (base / str(number),)}


def why_incomplete(folder: Path) -> str | None:
    """What is missing in the folder of a version, or cut off: config.json, tokenizer, weights; None if it is whole."""
    try:
        return check_model_dir(folder, code="elsewhere")  # whether its code may be run is judged with the configuration
    except OSError as error:
        return f"{folder}: {error.strerror or error}"


def _stamp(folder: Path) -> str:
    digest = xxh3_64()
    for where, folders, names in os.walk(folder):
        folders.sort()
        for name in sorted(names):
            try:
                status = os.stat(os.path.join(where, name))
            except FileNotFoundError:  # a temporary file of whatever copies, or a link to nothing
                digest.update(f"{where}/{name}\0".encode("utf-8", "surrogateescape"))
                continue
            text = f"{where}/{name}\0{status.st_size}\0{status.st_mtime_ns}\0{status.st_ino}\n"
            digest.update(text.encode("utf-8", "surrogateescape"))
    return digest.hexdigest()
