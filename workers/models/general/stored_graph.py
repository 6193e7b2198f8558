"""A general model's graph, kept once it has passed the self-check, for other workers of the host and for later starts.

These need neither transformers nor a trace nor another check, and map the packed weights that are there already. Two
files of the weight cache: the graph as text, and its constants.

The key has our code and the kernels' build in it, as both decide what the constants hold. So each upgrade writes the
weights of a model again, and those of earlier ones are removed.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from pydantic import TypeAdapter

from slipstream.workers.models.description.result_cache import key_of
from slipstream.workers.models.directory.json_keys import ModelError
from slipstream.workers.models.directory.model_config import CONFIG_FILE
from slipstream.workers.models.directory.model_spec import GeneralSpec
from slipstream.workers.models.directory.steady_files import SteadyFiles
from slipstream.workers.models.general.attention.attention_call import AttentionCalls
from slipstream.workers.models.general.attention.flat_attention import FlatAttention
from slipstream.workers.models.general.execution.captured_model import CapturedModel
from slipstream.workers.models.general.graph.graph_file import (
    GraphFileError,
    fill_constants,
    num_bytes,
    of_text,
    take_constants,
    to_text,
)
from slipstream.workers.models.general.graph.step_graph import StepGraph
from slipstream.workers.models.weights.weight_cache import Bytes, cached, forget, keep_newest, known, loading

log = logging.getLogger(__name__)

KERNELS = Path(__file__).resolve().parents[3] / "kernels" / "cpu"  # what graphs call
MOST_KEPT = 2  # constants for the same weights: those of this installation, and of the one before or beside it
PREFIX_BYTES = 8
_CALLS = TypeAdapter(AttentionCalls)


@dataclass(frozen=True, slots=True)
class GraphStore:
    """Where a model's graph is kept. `directory` is that of the weight cache; None: nowhere. `files` are those that the
    key was made of: nothing is kept under it once they have changed. `prefix` is that of the keys of constants for the
    same weights."""

    directory: Path | None
    key: bytes
    files: SteadyFiles | None
    prefix: bytes

    @classmethod
    def nowhere(cls) -> GraphStore:
        return cls(None, b"", None, b"")

    @classmethod
    def of(
        cls,
        model_dir: Path,
        spec: GeneralSpec,
        dtype: torch.dtype,
        page_tokens: int,
        library: ctypes.CDLL,
        directory: Path | None,
        files: SteadyFiles | None,
    ) -> GraphStore:
        """`files` as for `load_general`. Raises ModelError."""
        files = SteadyFiles.of(model_dir) if files is None else files
        what = (library.slipstream_pack_format(), files.weights_key, spec, dtype, page_tokens)
        paths = [model_dir / CONFIG_FILE, *sorted(model_dir.glob("*.py")), *sorted(KERNELS.glob("*.py"))]
        try:
            built = Path(library._name).stat()
            parts = [path.read_bytes() for path in paths]
        except OSError as error:
            raise ModelError(f"{error.filename} cannot be read: {error.strerror}") from error
        identity = repr((*what, library._name, built.st_size, built.st_mtime_ns)).encode()
        prefix = hashlib.sha256(repr((files.weights_key, dtype, page_tokens)).encode()).digest()[:PREFIX_BYTES]
        return cls(directory, bytes.fromhex(key_of("graph", [identity, *parts])), files, prefix)

    @contextmanager
    def loading(self) -> Iterator[None]:
        """Held by a worker that may have to make the graph; others wait for it."""
        with contextlib.nullcontext() if self.directory is None else loading(self.directory, self.key):
            yield

    def load(
        self, spec: GeneralSpec, dtype: torch.dtype, page_tokens: int, library: ctypes.CDLL
    ) -> CapturedModel | None:
        """None: it is not kept, or is damaged and thus removed."""
        if self.directory is None or (kept := known(self.directory, self.key)) is None:
            return None
        try:
            stored = json.loads(kept.tobytes())
            graph = of_text(stored["graph"])
            calls = _CALLS.validate_json(stored["calls"])
            contents = known(self.directory, self._constants_key(stored["graph"]))
            if contents is None or len(contents) != num_bytes(graph):
                return None
            take_constants(graph, contents)
            attention = FlatAttention(calls, spec.kv.num_units, page_tokens, library=library, dtype=dtype)
            return CapturedModel(spec, dtype, graph, attention, library)
        except Exception as error:  # whatever a damaged text leads to
            log.warning("%s: a kept graph cannot be read, and is made anew: %s", self.directory, error)
            forget(self.directory, self.key)
            return None

    @contextmanager
    def taken(self, graph: StepGraph) -> Iterator[str | None]:
        """Puts the graph's constants where workers share them, and makes them views of that. They do not stay there if
        the block, which checks the graph and keeps it, raises. Yields the text for `keep`; None: the graph cannot be
        kept. Raises FilesChanged."""
        try:
            text = to_text(graph)
        except GraphFileError as error:
            log.info("the graph is not kept for other workers: %s", error)
            text = None
        directory = None if text is None else self.directory
        key = self._constants_key(text or "")

        def fill(contents: Bytes) -> None:
            fill_constants(graph, contents)
            self._check_files()

        take_constants(graph, cached(directory, key, num_bytes(graph), fill))
        try:
            yield text
        except BaseException:
            forget(directory, key)
            raise

    def keep(self, text: str, calls: AttentionCalls) -> None:
        """Of a graph that has passed the self-check: its text, and its calls of attention. Raises FilesChanged. Removes
        constants for the same weights that were not used for longest."""
        if self.directory is None:
            return
        self._check_files()
        content = json.dumps({"graph": text, "calls": _CALLS.dump_json(calls).decode()}).encode()

        def fill(contents: Bytes) -> None:
            contents[:] = np.frombuffer(content, np.uint8)

        cached(self.directory, self.key, len(content), fill)
        keep_newest(self.directory, self.prefix, MOST_KEPT)

    def _check_files(self) -> None:
        if self.files is not None:
            self.files.check()

    def _constants_key(self, text: str) -> bytes:
        return self.prefix + hashlib.sha256(self.key + text.encode()).digest()[len(self.prefix) :]
