"""Tables of Markdown."""

from __future__ import annotations


def cell(text: str) -> str:
    """The text on one line, with nothing in it that ends a cell."""
    return " ".join(text.split()).replace("|", "\\|")
