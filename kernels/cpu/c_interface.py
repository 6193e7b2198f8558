"""The C structs of the native library (`linear.hpp`, `attention.hpp`, `experts.hpp`, `program.hpp`, `api.cpp`,
`experts_api.cpp`) as ctypes sees them.

Pointers are addresses: the code that fills a struct keeps the arrays alive that it points to.
"""

from __future__ import annotations

import ctypes
import enum
from ctypes import POINTER, Structure, c_float, c_int32, c_int64, c_void_p


class Scalar(enum.IntEnum):
    F32 = 0
    BF16 = 1
    F16 = 2


class WeightKind(enum.IntEnum):
    F32 = 0
    BF16 = 1
    INT8 = 2
    FP8 = 3
    INT4 = 4


class KvFormat(enum.IntEnum):
    MODEL = 0
    INT8 = 1
    FP8 = 2


class WeightShape(Structure):
    _fields_ = [
        ("kind", c_int32),
        ("paired", ctypes.c_bool),
        ("outputs", c_int32),
        ("inputs", c_int32),
        ("group", c_int32),
    ]


class PackedWeight(Structure):
    _fields_ = [("shape", WeightShape), ("data", c_void_p)]


class SourceRows(Structure):
    _fields_ = [
        ("outputs", c_int32),
        ("values", c_void_p),
        ("stride", c_int64),
        ("values_type", c_int32),
        ("scales", c_void_p),
        ("scales_type", c_int32),
        ("scales_stride", c_int64),
        ("scale_outputs", c_int32),
        ("scale_first", c_int32),
        ("zeros", c_void_p),
        ("zeros_stride", c_int64),
    ]


class PackJob(Structure):
    _fields_ = [
        ("shape", WeightShape),
        ("sources", POINTER(SourceRows)),
        ("num_sources", c_int32),
        ("packed", c_void_p),
    ]


class KvShape(Structure):
    _fields_ = [
        ("num_kv_heads", c_int32),
        ("key_dim", c_int32),
        ("value_dim", c_int32),
        ("page_tokens", c_int32),
        ("format", c_int32),
        ("unit_heads", c_int32),
        ("unit_stride", c_int64),
        ("page_stride", c_int64),
    ]


class AttentionShape(Structure):
    _fields_ = [
        ("kv", KvShape),
        ("num_heads", c_int32),
        ("window", c_int32),
        ("chunk", c_int32),
        ("scale", c_float),
        ("softcap", c_float),
    ]


class AttentionKind(Structure):
    _fields_ = [("window", c_int32), ("on_samples", c_int32), ("group", c_int32)]


class RotaryKind(Structure):
    _fields_ = [("inv_freq", c_void_p), ("scale", c_float)]


class ModelShape(Structure):
    _fields_ = [
        ("type", c_int32),
        ("num_heads", c_int32),
        ("num_kv_heads", c_int32),
        ("head_dim", c_int32),
        ("page_tokens", c_int32),
        ("kv_format", c_int32),
        ("first_id", c_int32),
        ("num_ids", c_int32),
        ("num_kinds", c_int32),
        ("kinds", POINTER(AttentionKind)),
        ("num_rotaries", c_int32),
        ("rotaries", POINTER(RotaryKind)),
        ("attention_scale", c_float),
        ("attention_softcap", c_float),
    ]


class Op(enum.IntEnum):
    EMBED = 0
    ROTARY = 1
    NORM = 2
    LINEAR = 3
    WRITE = 4
    ATTEND = 5
    GATHER = 6
    BEST = 7
    ADD_NORM = 8
    ROUTE = 9
    PERMUTE = 10
    EXPERTS = 11
    COMBINE = 12


class Epilogue(enum.IntEnum):
    STORE = 0
    STORE_F32 = 1
    ADD_RESIDUAL = 2
    SILU_MUL = 3
    GELU_MUL = 4
    CLAMPED_SWIGLU = 5
    GELU_TANH = 6
    GELU = 7
    RELU = 8
    SILU = 9


class Routing(Structure):
    _fields_ = [
        ("num_experts", c_int32),
        ("first_expert", c_int32),
        ("num_own", c_int32),
        ("top_k", c_int32),
        ("renormalise", c_int32),
    ]


class Instruction(Structure):
    _fields_ = [
        ("op", c_int32),
        ("source", c_int32),
        ("target", c_int32),
        ("on_samples", c_int32),
        ("gathers", c_int32),
        ("epilogue", c_int32),
        ("layer", c_int32),
        ("attention", c_int32),
        ("group", c_int32),
        ("rotary", c_int32),
        ("eps", c_float),
        ("scale", c_float),
        ("weight", c_void_p),
        ("packed", PackedWeight),
        ("bias", c_void_p),
        ("routing", Routing),
        ("moe_layer", c_int32),
        ("expert_bytes", c_int64),
        ("alpha", c_float),
        ("limit", c_float),
    ]


class BufferRow(Structure):
    _fields_ = [("numbers", c_int32), ("bytes", c_int32)]


class Program(Structure):
    _fields_ = [("instructions", POINTER(Instruction)), ("rows", POINTER(BufferRow)), ("ns", POINTER(c_int64))]


class StepGroup(Structure):
    _fields_ = [("slots", c_void_p), ("page_table", c_void_p), ("page_table_stride", c_int64)]


class Step(Structure):
    _fields_ = [
        ("num_tokens", c_int32),
        ("num_seqs", c_int32),
        ("num_samples", c_int32),
        ("token_ids", c_void_p),
        ("positions", c_void_p),
        ("slots", c_void_p),
        ("query_starts", c_void_p),
        ("kv_lens", c_void_p),
        ("page_table", c_void_p),
        ("page_table_stride", c_int64),
        ("sample_rows", c_void_p),
        ("kv", c_void_p),
        ("num_pages", c_int64),
        ("buffers", POINTER(c_void_p)),
        ("best_ids", c_void_p),
        ("is_sound", c_void_p),
        ("more_groups", POINTER(StepGroup)),
        ("expert_rows", c_void_p),
    ]


class ExpertsCall(Structure):
    _fields_ = [
        ("type", c_int32),
        ("rows", c_int32),
        ("top_k", c_int32),
        ("num_experts", c_int32),
        ("gate", c_int32),
        ("alpha", c_float),
        ("limit", c_float),
        ("x", c_void_p),
        ("x_stride", c_int64),
        ("experts", c_void_p),
        ("weights", c_void_p),
        ("gate_up", PackedWeight),
        ("gate_up_bytes", c_int64),
        ("gate_up_bias", c_void_p),
        ("down", PackedWeight),
        ("down_bytes", c_int64),
        ("down_bias", c_void_p),
        ("y", c_void_p),
    ]


def declare(library: ctypes.CDLL) -> None:
    """Types of all functions. Raises AttributeError, naming the first that `library` lacks."""
    signatures: dict[str, tuple[type | None, list[type]]] = {
        "set_num_threads": (None, [c_int32]),
        "num_threads": (c_int32, []),
        "set_spin_ns": (None, [c_int64]),
        "set_helper_cpus": (None, [POINTER(c_int32), c_int32]),
        "set_niceness": (None, [c_int32]),
        "pack_format": (c_int32, []),
        "packed_bytes": (c_int64, [POINTER(WeightShape)]),
        "pack": (None, [POINTER(PackJob), c_int32]),
        "model_create": (c_void_p, [POINTER(ModelShape)]),
        "model_destroy": (None, [c_void_p]),
        "model_run": (None, [c_void_p, POINTER(Program), POINTER(Step), c_int32, c_int32]),
        "experts": (None, [POINTER(ExpertsCall)]),
        "samples_last_rows": (c_int32, [POINTER(Step)]),
        "attention_create": (c_void_p, [POINTER(AttentionShape), c_int32]),
        "attention_destroy": (None, [c_void_p]),
        "attention_begin": (None, [c_void_p, c_int32, c_void_p, c_void_p, c_void_p, c_int64]),
        "attention_run": (None, [c_void_p, c_void_p, c_int64, c_int64, c_void_p, c_void_p, c_void_p, c_int64]),
        "store_kv": (
            None,
            [
                c_void_p,
                *(c_void_p, c_int64, c_int64),
                *(c_void_p, c_int64, c_int64),
                *(c_void_p, c_int32, c_void_p),
            ],
        ),
        "product": (
            None,
            [c_void_p, c_void_p, c_int32, c_void_p, c_int64, c_int32, c_int32, c_void_p, c_int64],
        ),
        "norm_rows": (
            None,
            [c_int32, c_void_p, c_int64, c_void_p, c_float, c_void_p, c_int64, c_int32, c_int32],
        ),
        "layer_norm_rows": (
            None,
            [c_int32, c_void_p, c_int64, c_void_p, c_void_p, c_float, c_void_p, c_int64, c_int32, c_int32],
        ),
        "rotate_rows": (
            None,
            [c_int32, c_void_p, c_int64, c_int64, c_int32, c_int32, c_void_p, c_void_p, c_int64, c_int32],
        ),
        "best_of_rows": (None, [c_void_p, c_int64, c_int32, c_int32, c_void_p, c_void_p]),
    }
    for name, (result, arguments) in signatures.items():
        function = getattr(library, f"slipstream_{name}")
        function.restype = result
        function.argtypes = arguments
