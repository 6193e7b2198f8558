"""Which files of a source make up the version that is to be served."""

from __future__ import annotations

import json
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import PurePosixPath

from xxhash import xxh3_128

from slipstream.router.model_files.manifest import INDEX, NAMES, TEMPLATES
from slipstream.router.model_files.sources.checksum import Checksum
from slipstream.router.model_files.sources.sums_file import SUMS_FILE, read_sums
from slipstream.router.model_files.sources.weights_source import (
    MAX_JSON_BYTES,
    Listing,
    SourceFile,
    SourceRefused,
    WeightsSource,
    read_range,
)
from slipstream.router.model_files.sources.weights_url import WeightsUrl

SINGLE_FILE = "model.safetensors"
CONFIG_FILE = "config.json"
OTHER_WEIGHTS = ("*.bin", "*.pth", "*.pt", "*.ckpt", "*.gguf", "*.onnx", "*.h5", "*.msgpack", "consolidated*")


@dataclass(frozen=True, slots=True)
class VersionPlan:
    """`files` are those that are fetched, from the numbered `folder` of `url` or (folder "") from `url` itself.
    `version` stands for their content. `sums` are SHA-256 digests by name, from a file SHA256SUMS."""

    url: WeightsUrl
    folder: str
    version: str
    files: tuple[SourceFile, ...]
    sums: dict[str, str]

    @property
    def num_bytes(self) -> int:
        return sum(file.num_bytes for file in self.files)

    def local_name(self, file: SourceFile) -> str:
        return file.name.removeprefix(f"{self.folder}/") if self.folder else file.name

    def checksum(self, source: WeightsSource, file: SourceFile) -> Checksum | None:
        """What a file has to match. Raises SourceError."""
        known = self.sums.get(self.local_name(file))
        return source.checksum(file) if known is None else Checksum("sha256", known)


def plan_version(source: WeightsSource, number: str | None) -> VersionPlan:
    """The plan for the numbered folder `number` (None: the highest there is, if there are any). Reads the list of files
    and an index, but no weights. Raises SourceError if the source does not answer, or has nothing that can be served.
    """
    listing = source.listing()
    files = {file.name: file for file in listing.files}
    folder = _folder(source.url, files, number)
    inside = {
        name.removeprefix(f"{folder}/"): file
        for name, file in files.items()
        if not folder or name.startswith(f"{folder}/")
    }
    _check_can_be_served(source.url, inside)
    sums = read_sums(_content(source, inside[SUMS_FILE])) if SUMS_FILE in inside else {}
    names = _needed_names(source, inside)
    needed = tuple(inside[name] for name in sorted(names))
    url = source.url.at(listing.revision) if source.url.scheme == "hf" else source.url
    return VersionPlan(url, folder, _version(listing, needed, sums), needed, sums)


def _folder(url: WeightsUrl, files: dict[str, SourceFile], number: str | None) -> str:
    if CONFIG_FILE in files:
        return ""
    firsts = {name.partition("/")[0] for name in files if name.count("/") and name.endswith(f"/{CONFIG_FILE}")}
    numbers = sorted(int(one) for one in firsts if one.isascii() and one.isdigit() and str(int(one)) == one)
    if not numbers:
        return ""
    chosen = str(numbers[-1]) if number is None else number
    if chosen not in map(str, numbers):
        raise SourceRefused(f"{url}: there is no folder {chosen!r}; there are {', '.join(map(str, numbers))}")
    return chosen


def _check_can_be_served(url: WeightsUrl, files: dict[str, SourceFile]) -> None:
    """Raises SourceRefused."""
    if CONFIG_FILE not in files:
        what = ": it is an adapter, and not a model" if "adapter_config.json" in files else ""
        raise SourceRefused(f"{url}: there is no {CONFIG_FILE}{what}")
    if SINGLE_FILE in files or INDEX in files:
        return
    others = sorted(name for name in files if any(fnmatch(name, pattern) for pattern in OTHER_WEIGHTS))
    found = f", only {others[0]}" if others else ""
    advice = "; other formats can run code when they are loaded, or are not read: convert it to safetensors"
    raise SourceRefused(f"{url}: has neither {SINGLE_FILE} nor {INDEX}{found}{advice if others else ''}")


def _needed_names(source: WeightsSource, files: dict[str, SourceFile]) -> set[str]:
    """What a model's directory is read for; weights in other formats and documents stay where they are."""
    names = {name for name in NAMES if name in files}
    names.update(name for name in files if fnmatch(name, TEMPLATES) and name.count("/") == 1)
    if SINGLE_FILE in names:
        return names - {INDEX}  # it counts first
    shards = _shards(source, files[INDEX])
    missing = sorted(shards - files.keys())
    if missing:
        raise SourceRefused(f"{source.url}: {missing[0]} is missing, though {INDEX} names it")
    return names | shards


def _shards(source: WeightsSource, index: SourceFile) -> set[str]:
    try:
        shards = set(json.loads(_content(source, index))["weight_map"].values())
    except (ValueError, TypeError, KeyError, AttributeError):
        raise SourceRefused(f"{source.url}: {index.name} is no index of weights") from None
    for name in shards:
        if not (isinstance(name, str) and PurePosixPath(name).name == name and name.endswith(".safetensors")):
            raise SourceRefused(f"{source.url}: {index.name} names {name!r}, and only .safetensors files are loaded")
    return shards


def _content(source: WeightsSource, file: SourceFile) -> bytes:
    if file.num_bytes > MAX_JSON_BYTES:
        raise SourceRefused(f"{source.url}: {file.name} has {file.num_bytes} bytes, which is too much")
    return read_range(source, file, 0, file.num_bytes)


def _version(listing: Listing, files: tuple[SourceFile, ...], sums: dict[str, str]) -> str:
    if listing.revision:
        return listing.revision
    digest = xxh3_128()
    for file in files:
        digest.update(f"{file.name}\0{file.num_bytes}\0{file.stamp}\0{sums.get(file.name, '')}\n".encode())
    return digest.hexdigest()
