"""The datatypes of tensors: KServe's names, Triton's numbers for them, and what numpy and DLPack call them."""

from __future__ import annotations

from typing import Any

import numpy as np

# Name of KServe -> number in Triton's `TRITONSERVER_DataType`.
NUMBERS = {
    "BOOL": 1,
    "UINT8": 2,
    "UINT16": 3,
    "UINT32": 4,
    "UINT64": 5,
    "INT8": 6,
    "INT16": 7,
    "INT32": 8,
    "INT64": 9,
    "FP16": 10,
    "FP32": 11,
    "FP64": 12,
    "BYTES": 13,
    "BF16": 14,
}
NUMPY_TYPES: dict[str, Any] = {
    "BOOL": np.bool_,
    "UINT8": np.uint8,
    "UINT16": np.uint16,
    "UINT32": np.uint32,
    "UINT64": np.uint64,
    "INT8": np.int8,
    "INT16": np.int16,
    "INT32": np.int32,
    "INT64": np.int64,
    "FP16": np.float16,
    "FP32": np.float32,
    "FP64": np.float64,
    "BYTES": np.object_,
}
# As they are needed for every tensor: of those that numpy has, without BYTES.
DTYPES: dict[str, np.dtype[Any]] = {name: np.dtype(kind) for name, kind in NUMPY_TYPES.items() if name != "BYTES"}
NAMES_OF_DTYPES: dict[np.dtype[Any], str] = {dtype: name for name, dtype in DTYPES.items()}

# Name of KServe -> (type code, bits) in DLPack.
DLPACK_TYPES = {
    "BOOL": (6, 8),
    "UINT8": (1, 8),
    "UINT16": (1, 16),
    "UINT32": (1, 32),
    "UINT64": (1, 64),
    "INT8": (0, 8),
    "INT16": (0, 16),
    "INT32": (0, 32),
    "INT64": (0, 64),
    "FP16": (2, 16),
    "FP32": (2, 32),
    "FP64": (2, 64),
    "BF16": (4, 16),
}
NAMES_OF_DLPACK_TYPES = {dlpack_type: name for name, dlpack_type in DLPACK_TYPES.items()}


def datatype_of(dtype: np.dtype[Any]) -> str | None:
    """KServe's name for an array's elements; None: no tensor can have them."""
    name = NAMES_OF_DTYPES.get(dtype)
    if name is None and (dtype.kind == "O" or dtype.kind == "S"):
        return "BYTES"
    return name
