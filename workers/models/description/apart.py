"""Runs one of our modules on a model directory in a process of its own, with bounds for time and memory, and keeps what
it finds in the user's cache directory.

Such a process imports torch and transformers, which takes seconds and hundreds of megabytes. What it finds depends on
the files that it reads, on the versions of these libraries and on our code; the key of the cache has all of them.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import subprocess
import tempfile
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

from slipstream.router.process.cache_folder import cache_folder
from slipstream.router.process.module_command import module_command
from slipstream.workers.models.directory.json_keys import ModelError

TIMEOUT_S = 300
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_VERBOSITY": "error",
    "TOKENIZERS_PARALLELISM": "false",
    "CUDA_VISIBLE_DEVICES": "",
    "OMP_NUM_THREADS": "1",
}
LIBRARIES = ("transformers", "torch")
OWN_CODE = Path(__file__).resolve().parents[1] / "general"  # of what runs there


def run_apart(module: str, arguments: Iterable[str], model_dir: Path) -> bytes:
    """What the module prints. Raises ModelError, in a sentence, if it fails, or takes too much time or memory."""
    try:
        done = subprocess.run(
            module_command(module, *arguments),
            env=os.environ | ENVIRONMENT,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise ModelError(f"{model_dir}: transformers has not described the model within {TIMEOUT_S} s") from None
    except OSError as error:
        raise ModelError(f"{model_dir}: no process can be started to describe it: {error.strerror or error}") from None
    if done.returncode:
        lines = done.stderr.decode("utf-8", "replace").strip().splitlines()
        why = lines[-1] if lines else f"its process ended with {done.returncode}"
        raise ModelError(f"{model_dir}: transformers cannot describe the model: {why}")
    return done.stdout


class ResultCache:
    """What such processes have printed, by key. One that cannot be used forgets all."""

    def __init__(self) -> None:
        folder = cache_folder()
        self._folder = None if folder is None else folder / "models"

    def get(self, key: str) -> bytes | None:
        if self._folder is None:
            return None
        try:
            path = self._folder / f"{key}.json"
            content = path.read_bytes()
            os.utime(path)
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


def key_of(what: str, parts: Iterable[bytes]) -> str:
    """A digest of `parts`, of the libraries' versions and of our own code that runs there."""
    digest = hashlib.sha256(what.encode())
    versions = " ".join(_version(name) for name in LIBRARIES)
    own = (path.read_bytes() for path in sorted(OWN_CODE.rglob("*.py")))
    for part in (versions.encode(), *own, *parts):
        digest.update(len(part).to_bytes(8, "little") + part)
    return digest.hexdigest()


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""
