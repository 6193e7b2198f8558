"""The module of a backend found, and the example of docs/how-to/backends.md as a backend like the others."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from slipstream.workers.backends.backend import BackendError
from slipstream.workers.backends.hosting.backend_module import backend_module
from tests.support.workers.backend_examples import write, write_examples
from tests.support.workers.model_contexts import context_of
from tests.workers.backends.contract import BackendContract, Sample


@pytest.fixture(autouse=True)
def _imports(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What a process that hosts a backend changes for good."""
    monkeypatch.setattr(sys, "path", sys.path.copy())
    monkeypatch.setattr(sys, "dont_write_bytecode", sys.dont_write_bytecode)
    known = set(sys.modules)
    yield
    for name in set(sys.modules) - known:
        if name.startswith("slipstream_backend_"):
            del sys.modules[name]


class TestExampleContract(BackendContract):
    def sample(self, folder: Path) -> Sample:
        write_examples(folder)
        self.backend = backend_module("table", str(folder / "backends" / "table" / "backend.py"))
        file = folder / "models" / "prices" / "1" / "prices.csv"
        model = context_of(file, [("ROW", "INT32", [1])], [("VALUES", "FP32", [2])])
        rows = np.array([[1], [0], [1]], np.int32)
        return Sample(model, {"ROW": rows}, {"VALUES": np.array([[3, 4], [1, 2], [3, 4]], np.float32)})


def test_a_file_that_this_host_does_not_have_is_named(tmp_path: Path) -> None:
    with pytest.raises(BackendError, match=r"backend 'own': there is no file .*/backend.py on this host"):
        backend_module("own", str(tmp_path / "backend.py"))


def test_a_file_that_could_not_be_imported_is_tried_again(tmp_path: Path) -> None:
    write(tmp_path / "backend.py", "raise ImportError('not yet')")
    with pytest.raises(ImportError, match="not yet"):
        backend_module("own", str(tmp_path / "backend.py"))
    write(tmp_path / "backend.py", "def load(model): ...\ndef complete(model): return 'done'")
    assert backend_module("own", str(tmp_path / "backend.py")).complete(None) == "done"


def test_a_package_that_is_missing_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    for package, backend in (("openvino", "openvino"), ("onnxruntime", "onnxruntime")):
        for name in [name for name in sys.modules if name.startswith(f"slipstream.workers.backends.{backend}")]:
            monkeypatch.delitem(sys.modules, name)
        monkeypatch.setitem(sys.modules, package, None)
        with pytest.raises(BackendError, match=f"backend '{backend}' needs the package {package}, .*pip install"):
            backend_module(backend)


def test_a_backend_that_is_nowhere_is_refused() -> None:
    with pytest.raises(BackendError, match="unable to find backend library for backend 'nowhere'"):
        backend_module("nowhere")
