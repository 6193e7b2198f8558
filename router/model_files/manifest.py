"""The manifest of a model version: the content of every file that determines what is served.

    config.json, generation_config.json          sizes, end tokens, sampling defaults
    *.safetensors, model.safetensors.index.json  those that the index names, and model.safetensors
    pytorch_model*.bin, and their index          where there are no safetensors
    *.py                                         where config.json speaks of code (auto_map)
    tokenizer files, chat templates              NAMES, TEMPLATES
    quantisation configs

Other files of a directory (README.md, training logs, weights in other formats) may be added and removed.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from xxhash import xxh3_128

from slipstream.router.model_files.file_digest import DigestCache, FileDigest, FilesChanged, FileStamp
from slipstream.router.model_files.model_origin import ModelOrigin
from slipstream.router.process.container_limits import num_cores

WHOLE, INDEX = "model.safetensors", "model.safetensors.index.json"
PICKLED, PICKLED_INDEX = "pytorch_model.bin", "pytorch_model.bin.index.json"
NAMES = (
    "config.json",
    "generation_config.json",
    "model.safetensors",
    INDEX,
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "tokenizer.model",
    "spiece.model",
    "sentencepiece.bpe.model",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "tekken.json",
    "tiktoken.model",
    "chat_template.jinja",
    "chat_template.json",
    "quantize_config.json",
    "quant_config.json",
    "quantization_config.json",
    "hf_quant_config.json",
)
# Of these, what changes with the weights. All others describe the tokenizer and the chat template.
SETTINGS = frozenset(
    {
        "config.json",
        "generation_config.json",
        "quantize_config.json",
        "quant_config.json",
        "quantization_config.json",
        "hf_quant_config.json",
    }
)
TEMPLATES = "additional_chat_templates/*.jinja"
REFUSES = "refuses to serve"  # in the sentence of a process that has found files of another version
MAX_READERS = 8  # threads: disks of servers are faster than one


@dataclass(frozen=True, slots=True)
class ManifestFile:
    """One file: its name below the model's directory, its content, and the stamp that it had when it was read."""

    name: str
    content: FileDigest

    @property
    def is_weights(self) -> bool:
        return is_weights(self.name)


@dataclass(frozen=True, slots=True)
class Manifest:
    """The files of one version, by name. A file that has only been copied, moved or touched is the same file."""

    files: tuple[ManifestFile, ...]
    origin: ModelOrigin | None = None  # where hosts that do not have the directory can fetch them

    @classmethod
    def read(cls, model_dir: Path, cache: DigestCache, *, is_fresh: bool = False) -> Manifest:
        """Reads all files that the cache does not know; all of them, with `is_fresh`. Raises OSError, FilesChanged."""
        names = served_files(model_dir)
        with ThreadPoolExecutor(min(MAX_READERS, num_cores())) as readers:
            found = readers.map(lambda name: cache.digest_of(model_dir / name, is_fresh=is_fresh), names)
            return cls(tuple(map(ManifestFile, names, found)), ModelOrigin.read(model_dir))

    @property
    def digest(self) -> str:
        """Stands for the content of all files."""
        return _digest_of(self.files)

    @property
    def weights_digest(self) -> str:
        """Stands for the content of the weights."""
        return _digest_of(file for file in self.files if file.is_weights)

    @property
    def without_weights(self) -> Manifest:
        """What a router reads."""
        return Manifest(tuple(file for file in self.files if not file.is_weights), self.origin)

    def file(self, name: str) -> ManifestFile | None:
        return next((file for file in self.files if file.name == name), None)

    def difference(self, model_dir: Path, cache: DigestCache, *, ignores_weights: bool = False) -> str | None:
        """One sentence about the first file in `model_dir` that is not what it is here; None if all are the same."""
        try:
            self.verify(model_dir, cache, ignores_weights=ignores_weights)
        except FilesChanged as error:
            return str(error)
        return None

    def verify(self, model_dir: Path, cache: DigestCache, *, ignores_weights: bool = False) -> dict[str, FileStamp]:
        """Compares the files in `model_dir` with these, and returns their stamps by name. Only files with unknown
        stamps are read. Raises FilesChanged."""
        try:
            if not model_dir.is_dir():
                raise FilesChanged(f"{model_dir} is gone")
            there = [name for name in served_files(model_dir) if not (ignores_weights and is_weights(name))]
        except OSError as error:
            raise FilesChanged(f"{model_dir} cannot be read: {error.strerror or error}") from None
        files = self.without_weights.files if ignores_weights else self.files
        stamps = {}
        for file in files:
            stamps[file.name] = _verified(file, model_dir / file.name, cache)
        for name in there:
            if name not in stamps:
                raise FilesChanged(f"{model_dir / name} has been added")
        return stamps


def served_files(model_dir: Path) -> list[str]:
    """The names of the files in a model's directory that determine what is served."""
    names = {name for name in (*NAMES, *_shards(model_dir / INDEX)) if (model_dir / name).is_file()}
    names.update(f"{path.parent.name}/{path.name}" for path in model_dir.glob(TEMPLATES) if path.is_file())
    if names.isdisjoint((WHOLE, INDEX)):
        pickled = (PICKLED, PICKLED_INDEX, *_shards(model_dir / PICKLED_INDEX))
        names.update(name for name in pickled if (model_dir / name).is_file())
    if _has_code(model_dir):
        names.update(path.name for path in model_dir.glob("*.py") if path.is_file())
    return sorted(names)


def is_weights(name: str) -> bool:
    """Whether it is read only by workers. The index says from which file each tensor is taken."""
    return name.endswith((".safetensors", ".bin")) or name in (INDEX, PICKLED_INDEX)


def is_text(name: str) -> bool:
    """Whether it says how text becomes tokens: a tokenizer file or a chat template."""
    return not is_weights(name) and name not in SETTINGS and not name.endswith(".py")


def _has_code(model_dir: Path) -> bool:
    try:
        return b'"auto_map"' in (model_dir / "config.json").read_bytes()
    except OSError:
        return False


def _shards(index: Path) -> set[str]:
    """The files that an index names. One that cannot be read names none: loading the model will say what is wrong."""
    try:
        file_of = json.loads(index.read_bytes())["weight_map"]
        return {name for name in file_of.values() if isinstance(name, str) and Path(name).name == name}
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return set()


def _verified(file: ManifestFile, path: Path, cache: DigestCache) -> FileStamp:
    """The stamp of a file that has the content of `file`. Raises FilesChanged."""
    try:
        stamp = FileStamp.of(path)
        if file.content.is_settled and stamp.is_of_same_file(file.content.stamp):
            return stamp
        if stamp.num_bytes == file.content.stamp.num_bytes:
            now = cache.digest_of(path)
            if now.digest == file.content.digest:
                return now.stamp
    except FileNotFoundError:
        raise FilesChanged(f"{path} is gone") from None
    except OSError as error:
        raise FilesChanged(f"{path} cannot be read: {error.strerror or error}") from None
    written = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(stamp.mtime_ns / 1e9))
    raise FilesChanged(f"{path} has other content now ({stamp.num_bytes} bytes, written {written})")


def _digest_of(files: Iterable[ManifestFile]) -> str:
    digest = xxh3_128()
    for file in files:
        digest.update(f"{file.name}\0{file.content.digest}\n".encode("utf-8", "surrogateescape"))
    return digest.hexdigest()
