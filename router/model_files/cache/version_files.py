"""The files of a version on the host of a process that is to read them. The driver has fetched those of a remote source
for its own host; other hosts fetch the same ones, by the origin in the manifest."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from slipstream.router.model_files.cache.host_cache import HostCache, in_use
from slipstream.router.model_files.cache.version_download import Show, VersionDownload
from slipstream.router.model_files.cache.version_plan import VersionPlan, plan_version
from slipstream.router.model_files.file_digest import FilesChanged
from slipstream.router.model_files.manifest import REFUSES, Manifest, is_weights
from slipstream.router.model_files.model_origin import ModelOrigin
from slipstream.router.model_files.sources.open_source import open_source
from slipstream.router.model_files.sources.weights_source import WeightsSource
from slipstream.router.model_files.sources.weights_url import WeightsUrl
from slipstream.router.model_files.text_copy import copy_of

SHOW_EVERY_S = 2.0
NUM_TRIES = 3  # to have a version that others remove


@contextmanager
def version_files(model_dir: Path, manifest: Manifest | None, show: Show) -> Iterator[Path]:
    """The directory with a version's files on this host: `model_dir` or, for a version of a remote source, the one in
    this host's cache, which keeps it meanwhile. `show` is called every few seconds of a download. Raises SourceError,
    and FilesChanged if the source has other files now."""
    origin = None if manifest is None else manifest.origin
    if origin is None:
        yield model_dir
        return
    for _ in range(NUM_TRIES - 1):
        directory = _fetched(model_dir, origin, show)
        with in_use(directory) as is_there:
            if is_there:
                yield directory
                return
    yield _fetched(model_dir, origin, show)


def fetch_text(model_dir: Path, manifests: Sequence[Manifest]) -> None:
    """Makes the copy of a version's tokenizer and chat template for a router on a host without `model_dir`. Raises
    SourceError, FilesChanged, OSError."""
    for manifest in manifests:
        origin, copy = manifest.origin, copy_of(manifest)
        if origin is None or copy is None or copy.exists() or _is_version(model_dir, origin):
            continue
        source, plan = _planned(origin)
        texts = tuple(file for file in plan.files if not is_weights(file.name))
        part = copy.with_suffix(f".{os.getpid()}.part")
        try:
            VersionDownload(source, replace(plan, files=texts), part).run(_ignore)
            part.rename(copy)
        finally:
            shutil.rmtree(part, ignore_errors=True)


def _fetched(model_dir: Path, origin: ModelOrigin, show: Show) -> Path:
    """The version's directory on this host."""
    cache = HostCache(origin.cache_path, origin.max_gib)
    for directory in (model_dir, cache.directory_of(origin)):
        if _is_version(directory, origin):
            return directory
    source, plan = _planned(origin)
    return cache.fetch(source, plan, _seldom(show))


def _is_version(directory: Path, origin: ModelOrigin) -> bool:
    there = ModelOrigin.read(directory)
    return there is not None and (there.url, there.version, there.folder) == (origin.url, origin.version, origin.folder)


def _planned(origin: ModelOrigin) -> tuple[WeightsSource, VersionPlan]:
    url = WeightsUrl.parse(origin.url)
    assert url is not None
    source = open_source(url)
    plan = plan_version(source, origin.folder or None)
    if plan.version != origin.version:
        raise FilesChanged(f"{REFUSES} other files than those of the start: {url} has been changed since")
    return source, plan


def _seldom(show: Show) -> Show:
    """Worker processes log what they show."""
    next_s = 0.0

    def seldom(text: str) -> None:
        nonlocal next_s
        if time.monotonic() >= next_s:
            next_s = time.monotonic() + SHOW_EVERY_S
            show(text)

    return seldom


def _ignore(text: str) -> None:
    """Nobody sees it."""
