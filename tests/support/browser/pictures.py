"""Pictures of the page for the docs: as wide as the browser is, and small."""

from __future__ import annotations

import io
from pathlib import Path

from PIL import Image
from playwright.sync_api import Page

FOLDER = Path(__file__).resolve().parents[3] / "docs/pictures"
MAX_BYTES = 150_000
NUM_COLOURS = 128


def save_picture(page: Page, name: str) -> None:
    """What the window shows, as docs/pictures/NAME.png."""
    picture = Image.open(io.BytesIO(page.screenshot(animations="disabled", caret="hide"))).convert("RGB")
    path = FOLDER / f"{name}.png"
    FOLDER.mkdir(exist_ok=True)
    picture.quantize(NUM_COLOURS, dither=Image.Dither.NONE).save(path, optimize=True)
    assert path.stat().st_size <= MAX_BYTES, f"{path.name} has {path.stat().st_size} bytes"
