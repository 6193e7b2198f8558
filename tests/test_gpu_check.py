"""The GPU check without a GPU: its plumbing, on tiny shapes, and that a bare machine has all it imports."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPTS = Path(__file__).resolve().parents[1] / "scripts"
pytestmark = pytest.mark.timeout(400)  # several processes that import torch, on a machine that may be busy

# What the machine that it is meant for has not, of all that the rest of the project depends on.
ABSENT = ("ray", "ucxx", "pydantic", "httptools", "orjson", "fastapi", "uvicorn", "openai", "httpx", "triton")
MODULES = ("gpu_tests", "ceilings", "kernels", "engine", "page_transfer", "transfer_process", "peer")


def dry_run(step: str, out: Path) -> tuple[subprocess.CompletedProcess[str], list[dict[str, Any]]]:
    environment = {**os.environ, "PYTHON": sys.executable, "OMP_NUM_THREADS": "1"}
    command = [str(SCRIPTS / "gpu_check"), "--dry-run", "--only", step, "--out", str(out)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    results = out / "results.jsonl"
    rows = [json.loads(line) for line in results.read_text().splitlines()] if results.exists() else []
    return done, rows


@pytest.mark.parametrize(
    ("step", "wanted"),
    [
        ("engine", "tiny fp8 decode step 4 x 32"),
        ("transfer", "agents"),
        ("peer", "transformers: tiny bf16 4 requests, 16 in 4 out"),
    ],
)
def test_a_dry_run_measures_and_writes_its_page(step: str, wanted: str, tmp_path: Path) -> None:
    done, rows = dry_run(step, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    [value] = [row["value"] for row in rows if row["step"] == step and row["name"] == wanted]
    assert value > 0
    assert not any(row["failed"] for row in rows)
    assert f"| {wanted} |" in (tmp_path / "h200.md").read_text()
    assert wanted in done.stdout.split("----")[0]


def test_every_kernel_is_listed_with_its_floor(tmp_path: Path) -> None:
    pytest.importorskip("triton")
    done, rows = dry_run("kernels", tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    names = {row["name"].split()[0] for row in rows if row["step"] == "kernels"}
    assert {"decode_attention", "page_pull"} <= names


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
