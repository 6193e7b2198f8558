"""Kernels compile for an H200, within its resources, where there is none."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.kernels.linear_launches import NOTHING_NEW
from tests.support.kernels.sm90 import SHARED_MEMORY_BYTES, Resources

pytestmark = pytest.mark.timeout(400)  # everything is compiled where nothing has been before

ROOT = Path(__file__).resolve().parents[3]
MAX_STACK_BYTES = 64  # a few spilled numbers, outside of the loops that matter


@pytest.fixture(scope="module")
def compiled() -> list[Resources]:
    """Of all launches, in one process in which nothing is interpreted."""
    modules = sorted(
        f"tests.support.kernels.{path.stem}" for path in (ROOT / "tests/support/kernels").glob("*_launches.py")
    )
    command = [sys.executable, "-m", "tests.support.kernels.sm90", *modules]
    environment = os.environ | {"TRITON_INTERPRET": "0"}
    result = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=ROOT)
    assert result.returncode == 0, result.stderr
    return [Resources(**json.loads(line)) for line in result.stdout.splitlines()]


def test_all_launches_compile_and_fit_into_shared_memory(compiled: list[Resources]) -> None:
    assert len({kernel.kernel for kernel in compiled}) > 10
    assert not [kernel for kernel in compiled if kernel.shared_bytes > SHARED_MEMORY_BYTES]


def test_another_number_of_rows_is_no_other_kernel(compiled: list[Resources]) -> None:
    """It would be compiled while somebody waits for a token."""
    assert not [kernel for kernel in compiled if kernel.launch.endswith(NOTHING_NEW)]


def test_registers_suffice(compiled: list[Resources]) -> None:
    assert not [kernel for kernel in compiled if kernel.stack_bytes > MAX_STACK_BYTES]


def test_attention_multiplies_on_matrix_units(compiled: list[Resources]) -> None:
    expected = {"prefill_attention_kernel": "wgmma.mma_async", "decode_attention_kernel": "mma.sync"}
    slow = [
        kernel
        for kernel in compiled
        if kernel.matrix_instructions != expected.get(kernel.kernel, kernel.matrix_instructions)
        and "fp32" not in kernel.launch
    ]
    assert not slow


def test_two_programs_of_decode_attention_share_a_multiprocessor(compiled: list[Resources]) -> None:
    """As its configuration counts on."""
    decode = [kernel for kernel in compiled if kernel.kernel == "decode_attention_kernel"]
    assert not [kernel for kernel in decode if kernel.programs_per_multiprocessor < 2]
