"""A quick check of a model directory, without torch, for mistakes that can be seen from the outside."""

from __future__ import annotations

import json
from pathlib import Path

from slipstream.router.text.conversion import VOCABULARIES


def check_model_dir(path: Path) -> str | None:
    """One sentence about the first mistake, or None. Reads only headers, never weights."""
    if not path.exists():
        return f"no such directory: {path}"
    if not path.is_dir():
        return f"not a directory: {path}"
    problem = _check_json(path / "config.json")
    if problem:
        return problem
    if not any((path / name).exists() for name in ("tokenizer.json", *VOCABULARIES)):
        return f"no tokenizer.json in {path}"
    index = path / "model.safetensors.index.json"
    if index.exists():
        problem = _check_json(index)
        if problem:
            return problem
        weight_map = json.loads(index.read_bytes()).get("weight_map")
        if not isinstance(weight_map, dict) or not weight_map:
            return f"{index} has no weight_map"
        shards = sorted({path / str(name) for name in weight_map.values()})
    else:
        shards = sorted(path.glob("*.safetensors"))
    if not shards:
        return f"no *.safetensors in {path}"
    return next(filter(None, map(_check_safetensors, shards)), None)


def _check_json(path: Path) -> str | None:
    try:
        value = json.loads(path.read_bytes())
    except FileNotFoundError:
        return f"no {path.name} in {path.parent}"
    except OSError as error:
        return f"{path} cannot be read: {error.strerror}"
    except ValueError as error:
        return f"{path} is not valid JSON: {error}"
    return None if isinstance(value, dict) else f"{path} must hold a JSON object"


def _check_safetensors(path: Path) -> str | None:
    """What is wrong with a safetensors file: a u64 little-endian length, a JSON header of that length, then the bytes
    of all tensors."""
    try:
        num_bytes = path.stat().st_size
        with path.open("rb") as file:
            header_bytes = int.from_bytes(file.read(8), "little")
            if num_bytes < 8 or header_bytes > num_bytes - 8:
                return f"{path} is truncated or no safetensors file ({num_bytes} bytes)"
            header = json.loads(file.read(header_bytes))
        data_bytes = max((t["data_offsets"][1] for n, t in header.items() if n != "__metadata__"), default=0)
    except FileNotFoundError:
        return f"no {path.name} in {path.parent}, though the index names it"
    except OSError as error:
        return f"{path} cannot be read: {error.strerror}"
    except (ValueError, TypeError, KeyError, IndexError, AttributeError):
        return f"{path} is no safetensors file: its header cannot be read"
    expected = 8 + header_bytes + data_bytes
    if num_bytes < expected:
        return f"{path} is truncated: {num_bytes} bytes of {expected}"
    return None
