"""The datatypes of tensors: KServe's names, those of `config.pbtxt`, sizes, and numpy's names.

Source: KServe's Open Inference Protocol v2, and Triton's `model_config.proto`.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Datatype:
    """`element_bytes` is None for BYTES, whose elements each have their length before them (uint32, little endian).
    `numpy_name` is None for BF16, which numpy does not have, and for BYTES, whose arrays hold objects."""

    name: str
    config_name: str
    element_bytes: int | None
    numpy_name: str | None


DATATYPES = {
    datatype.name: datatype
    for datatype in (
        Datatype("BOOL", "TYPE_BOOL", 1, "bool"),
        Datatype("UINT8", "TYPE_UINT8", 1, "uint8"),
        Datatype("UINT16", "TYPE_UINT16", 2, "uint16"),
        Datatype("UINT32", "TYPE_UINT32", 4, "uint32"),
        Datatype("UINT64", "TYPE_UINT64", 8, "uint64"),
        Datatype("INT8", "TYPE_INT8", 1, "int8"),
        Datatype("INT16", "TYPE_INT16", 2, "int16"),
        Datatype("INT32", "TYPE_INT32", 4, "int32"),
        Datatype("INT64", "TYPE_INT64", 8, "int64"),
        Datatype("FP16", "TYPE_FP16", 2, "float16"),
        Datatype("BF16", "TYPE_BF16", 2, None),
        Datatype("FP32", "TYPE_FP32", 4, "float32"),
        Datatype("FP64", "TYPE_FP64", 8, "float64"),
        Datatype("BYTES", "TYPE_STRING", None, None),
    )
}
BY_CONFIG_NAME = {datatype.config_name: datatype for datatype in DATATYPES.values()}
