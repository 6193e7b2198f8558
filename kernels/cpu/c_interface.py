"""The C structs of the native library (`linear.hpp`, `model.hpp`, `api.cpp`) as ctypes sees them.

Pointers are addresses: the caller that fills a struct keeps the arrays alive that it points to.
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


class LinearWeights(Structure):
    _fields_ = [("weight", PackedWeight), ("bias", c_void_p)]


class LayerWeights(Structure):
    _fields_ = [
        ("attention_norm", c_void_p),
        ("qkv", LinearWeights),
        ("qk_norm", c_void_p),
        ("output", LinearWeights),
        ("mlp_norm", c_void_p),
        ("gate_up", LinearWeights),
        ("down", LinearWeights),
        ("window", c_int32),
    ]


class ModelShape(Structure):
    _fields_ = [
        ("type", c_int32),
        ("num_layers", c_int32),
        ("hidden_size", c_int32),
        ("intermediate_size", c_int32),
        ("num_heads", c_int32),
        ("num_kv_heads", c_int32),
        ("head_dim", c_int32),
        ("page_tokens", c_int32),
        ("kv_format", c_int32),
        ("first_id", c_int32),
        ("vocab_share", c_int32),
        ("num_ids", c_int32),
        ("is_sharded", c_int32),
        ("norm_eps", c_float),
        ("attention_scale", c_float),
        ("rotary_scale", c_float),
    ]


class ModelWeights(Structure):
    _fields_ = [
        ("embedding", c_void_p),
        ("layers", POINTER(LayerWeights)),
        ("final_norm", c_void_p),
        ("lm_head", LinearWeights),
        ("inv_freq", c_void_p),
    ]


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
        ("x", c_void_p),
        ("partial", c_void_p),
        ("logits", c_void_p),
        ("best_ids", c_void_p),
        ("is_sound", c_void_p),
        ("only_samples", c_int32),
    ]


# The kinds of phases whose times `slipstream_model_times` tells, in its order.
OPS = (
    "embed",
    "rotary",
    "attention_norm",
    "qkv",
    "write",
    "attend",
    "output",
    "mlp_norm",
    "gate_up",
    "down",
    "final_norm",
    "logits",
    "best",
)


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
        "model_create": (c_void_p, [POINTER(ModelShape), POINTER(ModelWeights)]),
        "model_destroy": (None, [c_void_p]),
        "model_run": (None, [c_void_p, POINTER(Step), c_int32, c_int32]),
        "model_time": (None, [c_void_p, c_int32]),
        "model_times": (None, [c_void_p, POINTER(c_int64), POINTER(c_int64)]),
    }
    for name, (result, arguments) in signatures.items():
        function = getattr(library, f"slipstream_{name}")
        function.restype = result
        function.argtypes = arguments
