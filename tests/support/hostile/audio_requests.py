"""Hostile to what reads audio: WAVE files whose heads say what is not so, and forms."""

from __future__ import annotations

import io
import struct
import wave
from collections.abc import Iterator

from tests.support.hostile.hostile_request import ANY, BOUNDARY, FORM, MIB, REFUSED, HostileRequest, form


def of_audio() -> Iterator[HostileRequest]:
    whole = wave_file(800)
    for name, file in {
        "a header of 4 GB": wave_head(2**32 - 1) + bytes(1000),
        "rate 0": wave_head(1000, rate=0) + bytes(1000),
        "rate 2**32-1": wave_head(1000, rate=2**32 - 1) + bytes(1000),
        "rate 1": wave_head(4 * MIB, rate=1) + bytes(4 * MIB),
        "no channels": wave_head(1000, channels=0) + bytes(1000),
        "65535 channels": wave_head(1000, channels=65535) + bytes(1000),
        "samples of 7 bits": wave_head(1000, bits=7) + bytes(1000),
        "samples of 65528 bits": wave_head(1000, bits=65528) + bytes(1000),
        "an empty file": b"",
        "4 bytes": b"RIFF",
        "no data": whole[:36],
        "a chunk that ends nowhere": whole[:12] + b"LIST" + struct.pack("<I", 2**32 - 1) + bytes(100),
        "many empty chunks": whole[:12] + (b"junk" + bytes(4)) * 500_000,
        "flac cut short": b"fLaC" + b"\x00\x00\x00\x22" + b"\xff" * 20,
        "ogg cut short": b"OggS" + b"\xff" * 100,
        "mp3 of noise": b"\xff\xfb\x90\x00" + b"\xff" * 5000,
        "text": b"no sound " * 1000,
    }.items():
        allowed = ANY if name in ("a header of 4 GB", "samples of 7 bits") else REFUSED
        yield form(f"audio {name}", file, allowed=allowed)
    for name, fields in {
        "language a megabyte": {"language": "x" * MIB},
        "temperature NaN": {"temperature": "nan"},
        "temperature 1e999": {"temperature": "1e999"},
        "another form of answer": {"response_format": "pdf"},
        "model unknown": {"model": "nobody"},
    }.items():
        yield form(f"audio {name}", whole, fields)
    path = "/v1/audio/transcriptions"
    yield HostileRequest("audio a form without an end", path, form("", whole).body[:-20], dict(FORM))
    yield HostileRequest("audio a form without a boundary", path, whole, {"content-type": "multipart/form-data"})
    part = f'--{BOUNDARY}\r\ncontent-disposition: form-data; name="x"\r\n\r\n1\r\n'.encode()
    yield HostileRequest("audio a form of 100000 fields", path, part * 100_000 + b"--edge--\r\n", dict(FORM))
    yield HostileRequest("audio JSON", path, b'{"model": "keypad"}')


def wave_head(num_bytes: int, *, rate: int = 8000, channels: int = 1, bits: int = 16) -> bytes:
    """The first 44 bytes of a WAVE file, which say that so many follow."""
    align = channels * bits // 8 % 2**16
    of_format = struct.pack("<HHIIHH", 1, channels, rate, rate * align % 2**32, align, bits)
    size = struct.pack("<I", min(num_bytes + 36, 2**32 - 1))
    return b"RIFF" + size + b"WAVEfmt " + struct.pack("<I", 16) + of_format + b"data" + struct.pack("<I", num_bytes)


def wave_file(num_samples: int) -> bytes:
    file = io.BytesIO()
    with wave.open(file, "wb") as writer:
        writer.setnchannels(1)
        writer.setsampwidth(2)
        writer.setframerate(8000)
        writer.writeframes(bytes(2 * num_samples))
    return file.getvalue()
