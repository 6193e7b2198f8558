"""Triton's interpreter where it does not compute what a GPU does.

Triton 3.6 interprets kernels in numpy, which has no bfloat16 and no fp8. It truncates to bfloat16 instead of rounding,
loses the carry when it rounds to fp8, takes integers for the bit patterns of bfloat16, and multiplies bfloat16 matrices
as integers. Bounds of loops that come from memory fail under numpy 2.4, which converts arrays of one element to a
number only on `item()`.

And it takes long over what is no part of the kernel. It patches all of the language again for each call of a function
inside a kernel, which takes longer than the function. It asks for the type of each tuple, and every tensor has one that
is not needed: its shape. Sums and products of integers it computes again in tensors of 64 bits, to see that none
overflows; numpy does that here. Together these were two fifths of the time.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import triton.language as tl
from numpy.typing import NDArray
from triton.language.semantic import TritonSemantic
from triton.runtime import interpreter

TORCH_TYPES = {
    tl.float8e4nv: torch.float8_e4m3fn,
    tl.float8e5: torch.float8_e5m2,
    tl.bfloat16: torch.bfloat16,
    tl.float16: torch.float16,
    tl.float32: torch.float32,
    tl.float64: torch.float64,
}
EXACT: dict[str, Callable[..., Any]] = {"add": np.add, "sub": np.subtract, "mul": np.multiply}
BIT_PATTERNS = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


def repair(patch: pytest.MonkeyPatch) -> None:
    patch_tensor = interpreter._patch_lang_tensor
    dot = interpreter.InterpreterBuilder.create_dot
    cast = interpreter.InterpreterBuilder.cast_impl

    def patch_tensor_index(tensor: Any, scope: Any) -> None:
        patch_tensor(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: self.handle.data.item())

    def dot_of_bfloat16(builder: Any, a: Any, b: Any, *args: Any) -> Any:
        return dot(builder, _widened(a), _widened(b), *args)

    def cast_integers(builder: Any, source: Any, to_type: Any) -> Any:
        if to_type.scalar is tl.bfloat16 and source.dtype.scalar.is_int():
            source = interpreter.TensorHandle(source.data.astype(np.float32), tl.float32)
        return cast(builder, source, to_type)

    builtins: dict[Any, list[tuple[str, Any]]] = {}

    def patch_builtins_once(package: Any, builder: Any, scope: Any) -> None:
        if package not in builtins:
            builtins[package] = inspect.getmembers(package, tl.core.is_builtin)
        for name, member in builtins[package]:
            if getattr(package, name) is not member:
                return  # patched by the kernel that calls this function
            interpreter._patch_attr(package, name, member, builder, scope)

    patch.setattr(interpreter, "_patch_builtin", patch_builtins_once)
    patch.setattr(tl.core.tuple, "__init__", begin_tuple)
    tuple_type = functools.cached_property(type_of_tuple)
    tuple_type.__set_name__(tl.core.tuple, "type")
    patch.setattr(tl.core.tuple, "type", tuple_type, raising=False)
    patch.setattr(TritonSemantic, "binary_op_sanitize_overflow_impl", check_overflow)
    patch.setattr(interpreter, "_convert_float", convert_float)
    patch.setattr(interpreter.InterpreterBuilder, "cast_impl", cast_integers)
    patch.setattr(interpreter, "_patch_lang_tensor", patch_tensor_index)
    patch.setattr(interpreter.InterpreterBuilder, "create_dot", dot_of_bfloat16)


def begin_tuple(self: Any, args: Any, type: Any = None) -> None:
    """Without a type, which is then that of the values: `type_of_tuple`, when somebody asks."""
    self.values = list(args)
    if type is not None:
        self.type = type if isinstance(type, tl.core.tuple_type) else tl.core.tuple_type(type)


def type_of_tuple(self: Any) -> Any:
    return tl.core._type_for_tuple_values(self.values)


def check_overflow(_: Any, left: Any, right: Any, operation: Callable[..., Any]) -> None:
    """Raises AssertionError if a sum, difference or product of integers does not fit into their type."""
    dtype = left.type.scalar
    if dtype.int_bitwidth >= 64:
        return
    exact = EXACT[operation.__name__](left.handle.data.astype(np.int64), right.handle.data.astype(np.int64))
    assert exact.max(initial=0) <= dtype.get_int_max_value(), f"{dtype} overflow detected for {operation.__name__}"
    assert exact.min(initial=0) >= dtype.get_int_min_value(), f"{dtype} overflow detected for {operation.__name__}"


def convert_float(numbers: NDArray[Any], from_type: Any, to_type: Any, rounding_mode: Any) -> NDArray[Any]:
    """Bit patterns of `to_type`, rounded to the nearest even, as the callers in the interpreter want them."""
    source, target = TORCH_TYPES[from_type], TORCH_TYPES[to_type]
    bits = torch.from_numpy(np.ascontiguousarray(numbers).view(np.uint8).copy())
    if target is torch.float8_e4m3fn:  # saturates, as the instruction does
        converted = bits.view(source).float().clamp(-448, 448).to(target)
    else:
        converted = bits.view(source).to(target)
    patterns = converted.view(torch.uint8).numpy().view(BIT_PATTERNS[target.itemsize])
    return patterns.reshape(numbers.shape)


def _widened(handle: Any) -> Any:
    if handle.dtype.scalar is not tl.bfloat16:
        return handle
    numbers = convert_float(handle.data, tl.bfloat16, tl.float32, None).view(np.float32)
    return interpreter.TensorHandle(numbers, tl.float32)
