"""From the bytes of an audio file to samples of one channel."""

from __future__ import annotations

import importlib.util
import io
import struct
from dataclasses import dataclass
from typing import Any

import numpy as np

from slipstream.router.api.tensors.models.tensor_arrays import Array

PCM, FLOAT, EXTENSIBLE = 1, 3, 0xFFFE  # format tags of WAVE
MAX_CHANNELS = 64
MAX_RATE = 192_000
MAX_FRAMES = 1 << 28  # of a file, whatever its rate: a small file may stand for hours of silence
BLOCK_FRAMES = 1 << 16  # are decoded at a time
BEGINNINGS = (  # of formats, by the first bytes and what stands behind them
    (b"RIFF", "wav"),
    (b"fLaC", "flac"),
    (b"OggS", "ogg"),
    (b"ID3", "mp3"),
    (b"\xff\xfb", "mp3"),
    (b"\xff\xf3", "mp3"),
    (b"\xff\xf2", "mp3"),
    (b"\x1aE\xdf\xa3", "webm"),
)


class AudioError(ValueError):
    """The file is no audio that can be read. The text goes behind the name of the field."""


@dataclass(frozen=True, slots=True)
class Audio:
    """`samples` [frames] are float32, -1 to 1."""

    samples: Array
    rate: int

    @property
    def duration_s(self) -> float:
        return len(self.samples) / self.rate


def read_audio(data: bytes | memoryview, max_s: float) -> Audio:
    """The mean of the channels. WAVE is read here, what else there is by the library soundfile. Raises AudioError."""
    begin = bytes(data[:12])
    form = next((name for first, name in BEGINNINGS if begin.startswith(first)), "")
    if form == "" and begin[4:8] == b"ftyp":
        form = "m4a"
    if form == "wav" and begin[8:12] == b"WAVE":
        audio = read_wave(memoryview(data), max_s)
        if audio is not None:
            return audio
    if importlib.util.find_spec("soundfile") is None:
        shown = form or "of an unknown format"
        raise AudioError(f"is {shown}; without the package soundfile only WAVE of PCM or float is read")
    return read_by_library(bytes(data), form, max_s)


def read_wave(data: memoryview, max_s: float) -> Audio | None:
    """None: it is coded in another way than as PCM or float. Raises AudioError."""
    position, layout = 12, None
    while position + 8 <= len(data):
        kind, size = bytes(data[position : position + 4]), int.from_bytes(data[position + 4 : position + 8], "little")
        body = data[position + 8 : position + 8 + size]
        if kind == b"fmt " and len(body) >= 16:
            layout = struct.unpack("<HHIIHH", body[:16])
            if layout[0] == EXTENSIBLE and len(body) >= 26:
                layout = (int.from_bytes(body[24:26], "little"), *layout[1:])
        elif kind == b"data" and layout is not None:
            return decoded(body, layout, max_s)
        position += 8 + size + size % 2
    raise AudioError("is WAVE without a format or without data")


def decoded(body: memoryview, layout: tuple[int, ...], max_s: float) -> Audio | None:
    tag, channels, rate, _, frame_bytes, bits = layout
    check_layout(channels, rate)
    sample_bytes = bits // 8
    if frame_bytes != channels * sample_bytes or (tag, sample_bytes) not in READERS:
        return None
    num_frames = len(body) // frame_bytes
    check_duration(num_frames, rate, max_s)
    values = READERS[tag, sample_bytes](body[: num_frames * frame_bytes])
    return Audio(mono(values.reshape(num_frames, channels)), rate)


def of_bytes(body: memoryview) -> Array:
    return (np.frombuffer(body, np.uint8).astype(np.float32) - 128) / 128


def of_24_bits(body: memoryview) -> Array:
    octets = np.frombuffer(body, np.uint8).reshape(-1, 3)
    words = np.zeros((len(octets), 4), np.uint8)
    words[:, 1:] = octets
    values: Array = words.view("<i4")[:, 0] / np.float32(2**31)
    return values


READERS: dict[tuple[int, int], Any] = {
    (PCM, 1): of_bytes,
    (PCM, 2): lambda body: np.frombuffer(body, "<i2") / np.float32(2**15),
    (PCM, 3): of_24_bits,
    (PCM, 4): lambda body: np.frombuffer(body, "<i4") / np.float32(2**31),
    (FLOAT, 4): lambda body: np.frombuffer(body, "<f4"),
    (FLOAT, 8): lambda body: np.frombuffer(body, "<f8"),
}


def read_by_library(data: bytes, form: str, max_s: float) -> Audio:
    """Raises AudioError."""
    import soundfile  # an optional extra, and only here

    try:
        with soundfile.SoundFile(io.BytesIO(data)) as file:
            rate = int(file.samplerate)
            check_layout(file.channels, rate)
            most = min(MAX_FRAMES, int(max_s * rate)) + 1
            blocks, num_frames = [], 0
            while num_frames < most and len(values := file.read(BLOCK_FRAMES, dtype="float32", always_2d=True)):
                blocks.append(mono(values))
                num_frames += len(values)
    except (soundfile.LibsndfileError, RuntimeError) as error:
        shown = f"{form}, which cannot be read" if form else "no audio that can be read"
        cause = getattr(error, "error_string", str(error))  # without the object that was read
        raise AudioError(f"is {shown}; wav, flac, ogg and mp3 can ({cause})") from error
    check_duration(num_frames, rate, max_s)
    return Audio(np.concatenate(blocks), rate)


def mono(values: Array) -> Array:
    """[frames, channels] to [frames]."""
    samples: Array = values.mean(axis=1, dtype=np.float32)
    return np.nan_to_num(samples)


def check_layout(channels: int, rate: int) -> None:
    if not (0 < channels <= MAX_CHANNELS and 0 < rate <= MAX_RATE):
        limits = f"there may be {MAX_CHANNELS} channels and {MAX_RATE} Hz"
        raise AudioError(f"has {channels} channels at {rate} Hz; {limits}")


def check_duration(num_frames: int, rate: int, max_s: float) -> None:
    if num_frames / rate > max_s or num_frames > MAX_FRAMES:
        raise AudioError(f"is longer than {min(max_s, MAX_FRAMES / rate):g} s")
    if not num_frames:
        raise AudioError("has no samples")
