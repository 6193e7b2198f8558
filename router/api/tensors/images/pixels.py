"""From the outputs of a model to pixels, and to files."""

from __future__ import annotations

import importlib.util
import io
import struct
import zlib
from typing import Literal

import numpy as np

from slipstream.router.api.tensors.models.tensor_arrays import Array

ImageFormat = Literal["png", "webp", "jpeg"]
COLOURS = {1: 0, 3: 2, 4: 6}  # PNG's types of colour by the number of channels
BITS = 8
ENCODED = {b"\x89PNG": "png", b"RIFF": "webp", b"\xff\xd8\xff": "jpeg"}
QUALITY = 90


def pixels_of(image: Array) -> Array:
    """[height, width, channels] of 0 to 255, of an image with its channels first or last. Numbers with a point are 0
    to 1, or -1 to 1 if one is below 0. Raises ValueError."""
    image = np.asarray(image)
    if image.ndim == 2:
        image = image[..., None]
    if image.ndim == 3 and image.shape[-1] not in COLOURS and image.shape[0] in COLOURS:
        image = np.moveaxis(image, 0, -1)
    if image.ndim != 3 or image.shape[-1] not in COLOURS:
        raise ValueError(f"has images of the shape {list(image.shape)}; one has height, width and 1, 3 or 4 channels")
    if image.dtype == np.uint8:
        return image
    if image.dtype.kind != "f":
        return np.clip(image, 0, 255).astype(np.uint8)
    values: Array = np.nan_to_num(image.astype(np.float32))
    if values.min(initial=0) < 0:
        values = values / 2 + 0.5
    values = np.rint(np.clip(values, 0, 1) * 255)
    return values.astype(np.uint8)


def can_encode(form: ImageFormat) -> bool:
    """PNG is written here; the others need Pillow."""
    return form == "png" or importlib.util.find_spec("PIL") is not None


def encoded(pixels: Array, form: ImageFormat, compression: int | None) -> bytes:
    """A file with these pixels. `compression` 0 to 100 is that of OpenAI, where 100 is the largest file."""
    if form == "png":
        return png(pixels)
    from PIL import Image  # an optional extra, and only here

    image = Image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels)
    if form == "jpeg" and image.mode == "RGBA":
        image = image.convert("RGB")
    file = io.BytesIO()
    image.save(file, form.upper(), quality=QUALITY if compression is None else compression)
    return file.getvalue()


def png(pixels: Array) -> bytes:
    """Source: the PNG specification, third edition."""
    height, width, channels = pixels.shape
    rows = np.zeros((height, 1 + width * channels), np.uint8)  # before each row its filter, 0: none
    rows[:, 1:] = pixels.reshape(height, -1)
    head = struct.pack(">IIBBBBB", width, height, BITS, COLOURS[channels], 0, 0, 0)
    parts = (b"IHDR", head), (b"IDAT", zlib.compress(rows.tobytes(), 6)), (b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + b"".join([chunk(kind, data) for kind, data in parts])


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def format_of(file: bytes) -> str | None:
    """That of a file that a model has encoded itself; None: it is none of these."""
    return next((form for begin, form in ENCODED.items() if file.startswith(begin)), None)
