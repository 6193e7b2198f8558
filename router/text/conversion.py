"""Makes a tokenizer.json out of the files of models that have none: tokenizer.model of sentencepiece, vocab.json and
merges.txt of GPT-2 and Qwen2, tekken.json of Mistral, tiktoken.model.

The library `transformers` does it, in a process of its own: importing it takes seconds and hundreds of megabytes. What
it made is kept in the user's cache directory, under a digest of the files.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

from slipstream.router.process.cache_folder import cache_folder
from slipstream.router.process.module_command import module_command

# What may be converted, and the modules that this takes besides `transformers`.
VOCABULARIES: dict[str, tuple[str, ...]] = {
    "tokenizer.model": ("sentencepiece", "google.protobuf"),
    "vocab.json": (),
    "tekken.json": (),
    "tiktoken.model": ("tiktoken",),
}
TIKTOKEN_LINE = re.compile(rb"[A-Za-z0-9+/=]+ \d+\s*")  # with which some files called tokenizer.model begin
# Everything that `transformers` looks at.
FILES = (
    *VOCABULARIES,
    "merges.txt",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "config.json",
)
TIMEOUT_S = 300
WARNINGS = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error", "TOKENIZERS_PARALLELISM": "false"}


class Converted(NamedTuple):
    """`tokenizer_json` has all added tokens. `named_tokens` are those that a chat template may use (`bos_token`)."""

    tokenizer_json: str
    named_tokens: dict[str, str]


def converted(directory: Path) -> Converted:
    """Raises FileNotFoundError if there is nothing to convert, and ValueError with a sentence if it cannot be done."""
    found = [name for name in VOCABULARIES if (directory / name).is_file()]
    if not found:
        if (refusal := why_code_is_needed(directory)) is not None:
            raise FileNotFoundError(refusal)
        others = ", ".join(VOCABULARIES)
        raise FileNotFoundError(
            f"{directory / 'tokenizer.json'} is missing, and so is what it could be made of: {others}"
        )
    if found[0] == "vocab.json" and not (directory / "merges.txt").is_file():
        raise FileNotFoundError(
            f"{directory / 'merges.txt'} is missing beside vocab.json, and there is no tokenizer.json"
        )
    check_packages(directory / found[0])
    folder = cache_folder()
    if folder is None:
        return convert_apart(directory, found[0])
    path = folder / "tokenizers" / f"{digest_of(directory)}.json"
    with contextlib.suppress(OSError, ValueError, TypeError):
        return Converted(*json.loads(path.read_text("utf-8")))
    made = convert_apart(directory, found[0])
    with contextlib.suppress(OSError):  # without a cache it is made again at the next start
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", encoding="utf-8", dir=path.parent, delete=False) as file:
            json.dump(made, file)
        os.replace(file.name, path)
    return made


def why_code_is_needed(directory: Path) -> str | None:
    """A sentence if the tokenizer is code in the directory, which is not run whatever `trust_remote_code` says."""
    path = directory / "tokenizer_config.json"
    try:
        code = json.loads(path.read_bytes()).get("auto_map", {}).get("AutoTokenizer")
    except (OSError, ValueError, AttributeError):
        return None
    if not code:
        return None
    return (
        f"{path}: auto_map.AutoTokenizer: a tokenizer that is code, {code}, is not supported; save its tokenizer.json"
    )


def check_packages(path: Path) -> None:
    """Raises ValueError if a package is missing that the conversion takes."""
    modules = VOCABULARIES[path.name]
    if path.name == "tokenizer.model":
        with path.open("rb") as file:
            if TIKTOKEN_LINE.fullmatch(file.readline(1000)):
                modules = VOCABULARIES["tiktoken.model"]
    missing = [name for name in modules if not has_module(name)]
    if missing:
        raise ValueError(
            f"{path} cannot be converted to a tokenizer.json without the packages of slipstream[tokenizers]"
            f" ({', '.join(missing)} cannot be imported)"
        )


def has_module(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:  # not even the package that it lies in
        return False


def digest_of(directory: Path) -> str:
    digest = hashlib.sha256(metadata.version("transformers").encode())
    for name in FILES:
        path = directory / name
        content = path.read_bytes() if path.is_file() else b""
        digest.update(f"{name} {len(content)}\n".encode() + content)
    return digest.hexdigest()


def convert_apart(directory: Path, name: str) -> Converted:
    """Converts in another process. Raises ValueError with a sentence that names the file."""
    command = module_command("slipstream.router.text.conversion", str(directory.absolute()))
    try:
        done = subprocess.run(
            command,
            env=os.environ | WARNINGS,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise ValueError(
            f"{directory / name} could not be converted to a tokenizer.json within {TIMEOUT_S} s"
        ) from None
    if done.returncode:
        lines = done.stderr.decode("utf-8", "replace").strip().splitlines() or [f"exit code {done.returncode}"]
        raise ValueError(f"{directory / name} cannot be converted to a tokenizer.json: {lines[-1]}")
    return Converted(*json.loads(done.stdout))


def convert(directory: str) -> Converted:
    """Converts in this process. Raises whatever `transformers` raises."""
    from transformers import AutoTokenizer

    made: Any = AutoTokenizer.from_pretrained(directory, trust_remote_code=False, local_files_only=True)
    if not made.is_fast:
        raise ValueError(f"{type(made).__name__} has no fast tokenizer")
    return Converted(made.backend_tokenizer.to_str(), dict(made.special_tokens_map))


def main() -> None:
    """Converts the directory that is the only argument, and prints the result as JSON, or why there is none."""
    try:
        with contextlib.redirect_stdout(sys.stderr):
            made = convert(sys.argv[1])
    except Exception as error:  # the library raises many kinds
        sys.exit(f"{type(error).__name__}: {' '.join(str(error).split())}")
    json.dump(made, sys.stdout)


if __name__ == "__main__":
    main()
