"""Architectures that differ most from each other are served as docs/architectures.md says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from scripts.architectures_check.row import Row, read_rows

pytestmark = pytest.mark.timeout(400)  # one process after the other, on a machine that may be busy

ROOT = Path(__file__).resolve().parents[2]
COMMITTED = read_rows(ROOT / "scripts" / "architectures_check" / "rows.jsonl")
VARIANTS = ("ragged", "chunked", "cached", "preempted", "handed_over", "migrated")
CHOSEN = {
    "mixtral": "experts, a window",
    "deepseek_v3": "keys wider than values, dense and sparse layers",
    "gemma2": "soft-capped scores, windows in every other layer",
    "gpt_oss": "sinks",
    "gemma4_text": "sizes by layer, layers that share keys and values",
    "deepseek_v32": "latent keys and values, attention to tokens that an indexer chooses",
    "mimo_v2_flash": "unequal widths and windows",
    "opt": "learned positions",
    "gpt_bigcode": "one head of keys and values",
    "qwen3_next": "recurrent state beside attention",
    "falcon": "attention of its own",
    "bloom": "alibi",
    "emu3": "a configuration whose class checks all that is set",
}


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Row]:
    out = tmp_path_factory.mktemp("architectures") / "rows.jsonl"
    command = [sys.executable, "-m", "scripts.architectures_check.main", "--jobs", "2", "--out", str(out)]
    subprocess.run([*command, "--only", *CHOSEN, "--variants", *VARIANTS], cwd=ROOT, check=False, timeout=350)
    return read_rows(out)


@pytest.mark.parametrize("model_type", CHOSEN)
def test_an_architecture_is_served_as_the_document_says(model_type: str, rows: dict[str, Row]) -> None:
    row, committed = rows[model_type], COMMITTED[model_type]
    assert row.not_built == ""
    assert (row.refused == "") == (committed.refused == ""), row.refused
    assert row.path == committed.path
    for variant in VARIANTS:
        if variant in committed.variants:
            assert row.variants[variant].outcome == committed.variants[variant].outcome, row.variants[variant].why


def test_weights_are_drawn_so_that_a_mistake_would_show(rows: dict[str, Row]) -> None:
    assert [name for name, row in rows.items() if not row.is_strong] == []


def test_the_document_has_a_row_for_each_of_them() -> None:
    page = (ROOT / "docs" / "architectures.md").read_text()
    for name, row in COMMITTED.items():
        assert f"| {row.architecture} | `{name}` |" in page
