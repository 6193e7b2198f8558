"""Where the built files of the page are."""

from __future__ import annotations

from pathlib import Path

ASSETS = Path(__file__).parent / "assets"
INDEX = "index.html"


def is_built(folder: Path = ASSETS) -> bool:
    """Whether they are there; a source checkout has none before they are built."""
    return (folder / INDEX).is_file()
