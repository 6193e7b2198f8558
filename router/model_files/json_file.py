"""The JSON files of a model directory: what is one, and how its values stand in a sentence."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

MAX_DIGITS = 400  # of an integer; a double has up to 309
MAX_SENTENCE = 400  # characters
LONG_NUMBER = re.compile(r"\d{40,}")


def is_there(path: Path) -> bool:
    """Whether something has this name, also if it is a link that leads nowhere: that is a mistake, not a file that was
    left out."""
    return os.path.lexists(path)


def why_no_file(path: Path) -> str | None:
    """Why what has this name cannot be read, to be said after the path; None if it is a regular file. A pipe would
    block its reader."""
    if path.is_file():
        return None
    if not is_there(path):
        return "does not exist"
    return "is no regular file" if path.exists() else "is a link to a file that does not exist"


def parse_json(content: bytes | str) -> Any:
    """An integer of more digits than Python converts becomes a text of its first digits, which no key takes for a
    number. Raises ValueError or RecursionError if this is no JSON."""
    try:
        return json.loads(content)
    except (json.JSONDecodeError, UnicodeDecodeError):
        raise
    except ValueError:  # more than 4300 digits
        return json.loads(content, parse_int=_int_or_text)


def shortened(sentence: str) -> str:
    """The sentence with what is very long in it cut out."""
    text = LONG_NUMBER.sub(lambda found: f"{found[0][:20]}... ({len(found[0])} digits)", sentence)
    return text if len(text) <= MAX_SENTENCE else f"{text[: MAX_SENTENCE - 60]} ... {text[-50:]}"


def _int_or_text(digits: str) -> int | str:
    return int(digits) if len(digits) <= MAX_DIGITS else f"{digits[:20]}... ({len(digits)} digits)"
