"""What a path of the tensor API addresses."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from slipstream.router.tensors.infer_error import InferError

MODEL = re.compile(
    r"/v2/models/([^/]+)(?:/versions/([0-9]+))?(?:/(infer|generate|generate_stream|ready|config|stats|trace/setting))?"
)
HEALTH = re.compile(r"/v2/health/(live|ready)")
REPOSITORY = re.compile(r"/v2/repository(?:/([^/]+))?/(?:(index)|models/([^/]+)/(load|unload))")
MEMORY = re.compile(r"/v2/(system|cuda)sharedmemory(?:/region/([^/]+))?/(status|register|unregister)")
EXACT = {"/v2": "metadata", "/v2/models/stats": "stats", "/v2/logging": "logging", "/v2/trace/setting": "trace/setting"}
MAX_REMEMBERED_PATHS = 1024
MAX_VERSION = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class CallTarget:
    """`kind` is the last part of the path, with "model" for the metadata of a model and "system/..." or "cuda/..." for
    shared memory. `name` is of a model or a region, `repository` that of a repository."""

    kind: str
    name: str = ""
    version: str = ""
    repository: str = ""


@lru_cache(MAX_REMEMBERED_PATHS)
def target_of(path: str) -> CallTarget | None:
    """None: there is nothing at this path. Raises InferError for a version that is no number of 64 bits."""
    if path in EXACT:
        return CallTarget(EXACT[path])
    if match := MODEL.fullmatch(path):
        name, version, kind = match.groups()
        if kind == "trace/setting" and version:
            return None
        return CallTarget(kind or "model", name, checked_version(version or ""))
    if match := HEALTH.fullmatch(path):
        return CallTarget(match[1])
    if match := REPOSITORY.fullmatch(path):
        return CallTarget(match[2] or match[4], match[3] or "", repository=match[1] or "")
    if match := MEMORY.fullmatch(path):
        return CallTarget(f"{match[1]}/{match[3]}", match[2] or "")
    return None


def checked_version(text: str) -> str:
    """The version without zeros before it; "" for none."""
    if not text:
        return ""
    number = int(text) if len(text) < len(str(MAX_VERSION)) + 1 else MAX_VERSION + 1
    if number > MAX_VERSION:
        raise InferError(
            f"failed to get model version from specified version string '{text}' (details: stol), version should be an"
            " integral value > 0"
        )
    return str(number)
