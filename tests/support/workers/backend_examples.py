"""The backends and models that docs/how-to/backends.md shows, as files."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = Path(__file__).resolve().parents[3] / "docs" / "how-to" / "backends.md"
FILE_ON_PAGE = re.compile(r"^`([^`\n]+)`:\n\n```\w*\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def write_examples(folder: Path) -> None:
    """Into `folder/backends` and `folder/models`."""
    files = FILE_ON_PAGE.findall(PAGE.read_text(encoding="utf-8"))
    assert len(files) == 6
    for name, text in files:
        write(folder / name, text)


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
