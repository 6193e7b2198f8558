"""Python environments that models bring along as archives (of conda-pack or venv-pack): each is unpacked once."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import tarfile
from pathlib import Path


class ExecutionEnvironmentError(Exception):
    """An environment that cannot be used; the text names its path."""


def unpacked_environment(archive: Path, cache: Path) -> Path:
    """The folder of an environment. A folder stands for itself. An archive is unpacked below `cache`, unless this
    process or another one has done that with this version of it. Blocks for as long as it takes. Raises
    ExecutionEnvironmentError."""
    try:
        status = archive.stat()
        if archive.is_dir():
            return checked(archive)
        identity = f"{archive.resolve()}|{status.st_mtime_ns}|{status.st_size}"
        folder = cache / hashlib.sha256(identity.encode()).hexdigest()[:32]
        cache.mkdir(parents=True, exist_ok=True)
        with open(f"{folder}.lock", "w", encoding="utf-8") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not folder.exists():
                unpack(archive, folder)
        return checked(folder)
    except (OSError, tarfile.TarError) as error:
        raise ExecutionEnvironmentError(f"Python environment {archive}: {error}") from error


def unpack(archive: Path, folder: Path) -> None:
    """Into a folder that appears when it is complete."""
    partial = folder.with_suffix(".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    with tarfile.open(archive) as tar:
        tar.extraction_filter = lambda member, _: member  # links out of the archive are usual in environments
        tar.extractall(partial)
    os.rename(partial, folder)


def checked(folder: Path) -> Path:
    if not (folder / "bin" / "python").exists():
        raise ExecutionEnvironmentError(f"Python environment {folder}: it has no bin/python")
    return folder
