"""Prints a table of line coverage by folder, from the report of `coverage json`: python coverage_by_folder.py FILE."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def by_folder(files: Mapping[str, Mapping[str, Any]]) -> list[tuple[str, int, int]]:
    """Folder, number of statements, number of those that ran; sorted by folder. The last row is the sum."""
    statements: Counter[str] = Counter()
    covered: Counter[str] = Counter()
    for name, file in files.items():
        folder = str(Path(name).parent)
        statements[folder] += file["summary"]["num_statements"]
        covered[folder] += file["summary"]["covered_lines"]
    rows = [(folder, statements[folder], covered[folder]) for folder in sorted(statements)]
    return [*rows, ("all", statements.total(), covered.total())]


def main() -> int:
    report = json.loads(Path(sys.argv[1]).read_text("utf-8"))
    print(f"{'FOLDER':<28}{'LINES':>8}{'COVERED':>9}")
    for folder, num_statements, num_covered in by_folder(report["files"]):
        share = 100 * num_covered / num_statements if num_statements else 100.0
        print(f"{folder:<28}{num_statements:>8}{share:>8.1f}%")
    return 0


if __name__ == "__main__":
    sys.exit(main())
