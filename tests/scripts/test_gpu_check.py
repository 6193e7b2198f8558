"""The GPU check without a GPU: its plumbing, on tiny shapes, and that a bare machine has all it imports."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
pytestmark = pytest.mark.timeout(400)  # several processes that import torch, on a machine that may be busy

# What the machine that it is meant for has not, of all that the rest of the project depends on.
ABSENT = ("ray", "ucxx", "pydantic", "httptools", "orjson", "fastapi", "uvicorn", "openai", "httpx", "triton")
MODULES = (
    "gpu_tests",
    "ahead",
    "ceilings",
    "kernels",
    "engine",
    "page_transfer",
    "nccl_transfer",
    "transfer_process",
    "peer",
)


@dataclass(frozen=True)
class DryRun:
    status: int
    said: str
    rows: list[dict[str, Any]]
    page: str

    def of(self, step: str) -> list[dict[str, Any]]:
        rows = [row for row in self.rows if row["step"] == step]
        assert rows, self.said
        return rows


def assert_none_failed(rows: list[dict[str, Any]], said: str) -> None:
    failed = [f"{row['step']}, {row['name']}: {row['note']}" for row in rows if row["failed"]]
    assert not failed, "\n".join([*failed, said])


@pytest.fixture(scope="module")
def dry(tmp_path_factory: pytest.TempPathFactory) -> DryRun:
    """One run for all tests; each of its steps is a process of its own, and may fail alone."""
    out = tmp_path_factory.mktemp("dry")
    environment = {**os.environ, "PYTHON": sys.executable, "OMP_NUM_THREADS": "1"}
    # Not `compiling`, which is kernels/gpu/test_sm90.py.
    steps = [word for step in ("kernels", "engine", "transfer", "nccl", "peer") for word in ("--only", step)]
    command = [str(SCRIPTS / "gpu_check"), "--dry-run", *steps, "--out", str(out)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    rows = [json.loads(line) for line in (out / "results.jsonl").read_text().splitlines()]
    (page,) = out.glob("*.md")
    return DryRun(done.returncode, done.stdout + done.stderr, rows, page.read_text())


@pytest.mark.parametrize(
    ("step", "wanted"),
    [
        ("engine", "tiny fp8 decode step 4 x 32"),
        ("transfer", "agents"),
        ("nccl", "nccl"),
        ("peer", "transformers: tiny bf16 4 requests, 16 in 4 out"),
    ],
)
def test_a_dry_run_measures_and_writes_its_page(dry: DryRun, step: str, wanted: str) -> None:
    rows = dry.of(step)
    assert_none_failed(rows, dry.said)
    [value] = [row["value"] for row in rows if row["name"] == wanted]
    assert value > 0
    assert f"| {wanted} |" in dry.page
    assert wanted in dry.said.split("----")[0]


def test_a_run_in_which_nothing_failed_ends_well(dry: DryRun) -> None:
    assert (dry.status == 0) == (not any(row["failed"] for row in dry.rows)), dry.said


def test_every_kernel_is_listed_with_its_floor(dry: DryRun) -> None:
    pytest.importorskip("triton")
    rows = dry.of("kernels")
    assert_none_failed(rows, dry.said)
    assert {"decode_attention", "page_pull"} <= {row["name"].split()[0] for row in rows}


def test_a_torn_line_costs_only_itself(tmp_path: Path) -> None:
    program = (
        "import sys, pathlib; from gpu_checks.record import Book, Row; book = Book(pathlib.Path(sys.argv[1])); "
        "book.add(Row('a', 'first', 1.0)); book.path.open('a').write('{\"step\": \"a\", \"na'); book.mend(); "
        "book.add(Row('a', 'second', 2.0)); assert [row.name for row in book.rows('a')] == ['first', 'second']"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "results.jsonl")]
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": str(SCRIPTS)}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_steps_import_only_what_a_bare_machine_has() -> None:
    program = (
        f"import sys; sys.modules.update(dict.fromkeys({ABSENT!r})); sys.path.insert(0, {str(SCRIPTS)!r}); "
        f"import gpu_check, importlib; [importlib.import_module('gpu_checks.' + m) for m in {MODULES!r}]"
    )
    root = str(SCRIPTS.parent)
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=root,
        env={**os.environ, "PYTHONPATH": root},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
