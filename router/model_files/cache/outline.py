"""A model's directory without its weights, for checks: everything else is complete, and of each file of weights there
is the header and the size, but no content."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from slipstream.router.model_files.cache.version_plan import VersionPlan
from slipstream.router.model_files.sources.weights_source import SourceFile, SourceRefused, WeightsSource, read_range

NUM_READING = 8
FIRST_BYTES = 256 << 10  # holds most headers
MAX_HEADER_BYTES = 100_000_000  # the limit of the safetensors library


def write_outline(source: WeightsSource, plan: VersionPlan, folder: Path) -> None:
    """Writes the outline into an existing folder. Raises SourceError and OSError."""
    with ThreadPoolExecutor(NUM_READING) as reading:
        list(reading.map(lambda file: _write(source, plan, file, folder), plan.files))


def _write(source: WeightsSource, plan: VersionPlan, file: SourceFile, folder: Path) -> None:
    path = folder / plan.local_name(file)
    path.parent.mkdir(parents=True, exist_ok=True)
    is_weights = file.name.endswith(".safetensors")
    content = _header(source, file) if is_weights else read_range(source, file, 0, file.num_bytes)
    with path.open("wb") as opened:
        opened.write(content)
        opened.truncate(file.num_bytes)  # a hole, which takes no room


def _header(source: WeightsSource, file: SourceFile) -> bytes:
    """The first bytes of a file of weights: a u64 little-endian length and a JSON header of that length."""
    first = read_range(source, file, 0, min(FIRST_BYTES, file.num_bytes))
    end = 8 + int.from_bytes(first[:8], "little")
    if end > min(file.num_bytes, MAX_HEADER_BYTES):
        raise SourceRefused(f"{source.url}: {file.name} is truncated or no safetensors file ({file.num_bytes} bytes)")
    return first[:end] if len(first) >= end else first + read_range(source, file, len(first), end)
