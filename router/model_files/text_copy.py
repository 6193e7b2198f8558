"""Copies of what a router reads of a model: tokenizer files, chat templates and configs.

A restarted router serves the same version as before, even if the files have changed since: its workers still have the
weights of the version that they belong to. A copy is called by its content, and checked before it is used.

    DIRECTORY/<digest of the manifest without weights>/tokenizer.json ...
    DIRECTORY/<digest>.<pid>.part/                                         being written; renamed when it is complete
"""

from __future__ import annotations

import logging
import os
import shutil
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from slipstream.router.model_files.file_digest import UNUSED_DAYS, DigestCache, FilesChanged
from slipstream.router.model_files.manifest import REFUSES, Manifest
from slipstream.router.process.cache_folder import cache_folder

T = TypeVar("T")

log = logging.getLogger(__name__)


def read_text(model_dir: Path, manifests: Sequence[Manifest], read: Callable[[Path], T]) -> T:
    """What `read` makes of the folder with the text of the versions that are served. Raises FilesChanged, also if a
    file is exchanged meanwhile, and whatever `read` raises."""
    folder = text_folder(model_dir, manifests)
    found = read(folder)
    if text_folder(model_dir, manifests) != folder:
        raise FilesChanged(f"files in {folder} were changed while they were read")
    return found


def text_folder(model_dir: Path, manifests: Sequence[Manifest]) -> Path:
    """The folder from which a router can read what belongs to one of the versions that are served (these have the same
    tokenizer and chat template): `model_dir`, or a copy if its files are others now. Without `manifests`, whatever is
    in `model_dir` is served. Raises FilesChanged."""
    cache = DigestCache.of_user()
    difference = None
    for manifest in manifests:
        difference = manifest.difference(model_dir, cache, ignores_weights=True)
        if difference is None:
            return model_dir
    if difference is None:
        return model_dir
    for manifest in manifests:
        copy = copy_of(manifest)
        if copy is not None and manifest.difference(copy, cache, ignores_weights=True) is None:
            log.warning("%s: what is served is read from a copy, %s", difference, copy)
            with suppress(OSError):
                os.utime(copy)  # marks it as used
            return copy
    raise FilesChanged(f"{REFUSES} with the tokenizer of another version: {difference}")


def keep_text(model_dir: Path, manifests: Sequence[Manifest]) -> None:
    """Makes the copy for the routers to come. If that is not possible, they refuse other files."""
    cache = DigestCache.of_user()
    for manifest in manifests:
        copy = copy_of(manifest)
        if copy is None or copy.exists() or manifest.difference(model_dir, cache, ignores_weights=True) is not None:
            continue
        part = copy.with_suffix(f".{os.getpid()}.part")
        try:
            for file in manifest.without_weights.files:
                (part / file.name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(model_dir / file.name, part / file.name)
            part.rename(copy)
            _remove_unused(copy.parent)
        except OSError as error:
            if not copy.exists():  # else another process made it at the same time
                log.warning("a router that is restarted depends on the files in %s: %s", model_dir, error)
            shutil.rmtree(part, ignore_errors=True)


def copy_of(manifest: Manifest) -> Path | None:
    """Where the copy of a version's text is, if there is one; None for a user without a home."""
    folder = cache_folder()
    return None if folder is None else folder / "text" / manifest.without_weights.digest


def _remove_unused(directory: Path) -> None:
    oldest = time.time() - UNUSED_DAYS * 24 * 3600
    for path in directory.iterdir():
        with suppress(OSError):
            if path.stat().st_mtime < oldest:
                shutil.rmtree(path, ignore_errors=True)
