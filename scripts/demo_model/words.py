"""Names and words that tasks are filled with."""

from __future__ import annotations

from pathlib import Path

TEXT = (Path(__file__).parent / "texts" / "words.txt").read_text(encoding="utf-8")
# By kind: cities, names, jobs, ...
WORDS = {kind: words.split("; ") for kind, _, words in (line.partition(": ") for line in TEXT.splitlines())}
