"""Whether there are native kernels, without loading them."""

from __future__ import annotations

import platform
from pathlib import Path

import pytest

from slipstream.kernels.cpu import native_library as library


def test_another_processor_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    assert library.why_not_native() == f"they are built for x86-64 Linux, and this is aarch64 {platform.system()}"


def test_a_processor_without_the_instructions_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(library, "_processor_flags", lambda: frozenset({"sse2"}))
    assert library.why_not_native() == "the processor has neither AVX-512 with bf16 nor AVX2"


def test_libraries_that_were_not_built_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(library, "_processor_flags", lambda: library.NEEDED_FLAGS["avx2"])
    monkeypatch.setattr(library, "FOLDER", tmp_path)
    assert library.why_not_native() == f"{tmp_path}/_avx2.so: no such file"
    (tmp_path / "_avx2.so").touch()
    assert library.why_not_native() is None
