"""Whether a model's file fits its configuration, in the words of Triton's backends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slipstream.workers.backends.backend import BackendError, ModelContext

WILDCARD = -1


@dataclass(frozen=True, slots=True)
class FileTensor:
    """An input or output as the file has it. `datatype` is that of a configuration (TYPE_FP32), "" for one that no
    configuration has. `shape` includes the batch dimension, and has -1 for sizes that may vary; None: the file does not
    say."""

    name: str
    datatype: str
    shape: tuple[int, ...] | None


def check_exists(model: ModelContext, path: Path) -> None:
    """Raises BackendError."""
    if not path.exists():
        raise BackendError(f"unable to find '{path}' for model instance '{model.instance}'", "UNAVAILABLE")


def check_num_inputs(model: ModelContext, num_in_file: int, num_configured: int) -> None:
    """Raises BackendError."""
    if num_in_file != num_configured:
        text = f"configuration expects {num_configured} inputs, model provides {num_in_file}"
        raise refusal(model, text)


def check_tensor(
    model: ModelContext, kind: str, tensor: Mapping[str, Any], file: Mapping[str, FileTensor], *, is_exact: bool
) -> None:
    """An input or output of the configuration (`kind`). `is_exact`: where the file lets a size vary, so does the
    configuration. Raises BackendError."""
    name = tensor["name"]
    found = file.get(name)
    if found is None:
        names = ", ".join(file)
        raise BackendError(f"unexpected inference {kind} '{name}', allowed {kind}s are: {names}", "INVALID_ARG")
    if found.datatype and tensor["data_type"] != found.datatype:
        raise refusal(
            model,
            f"configuration expects datatype {tensor['data_type']} for {kind} '{name}', model provides "
            f"{found.datatype}",
        )
    if found.shape is not None:
        dims = [int(size) for size in (tensor["reshape"].get("shape", ()) if "reshape" in tensor else tensor["dims"])]
        check_dims(model, name, list(found.shape), dims, is_exact=is_exact)


def check_dims(model: ModelContext, name: str, shape: list[int], dims: list[int], *, is_exact: bool) -> None:
    """`dims` are those of the configuration. Raises BackendError."""
    where = f"model '{model.name}', tensor '{name}': "
    is_batched = model.max_batch_size > 0
    if not shape:
        check_scalar(model, name, dims)
        return
    if is_batched and shape[0] != WILDCARD:
        text = (
            "for the model to support batching the shape should have at least 1 dimension and the first dimension must "
            f"be -1; but shape expected by the model is {shape_text(shape)}"
        )
        raise BackendError(where + text, "INVALID_ARG")
    full = [WILDCARD, *dims] if is_batched else dims
    if fits(shape, full, is_exact=is_exact):
        return
    begin = f"the model expects {len(shape)} dimensions (shape {shape_text(shape)}) but the model configuration "
    if is_batched:
        text = (
            f"specifies {len(full)} dimensions (an initial batch dimension because max_batch_size > 0 followed by the "
            f"explicit tensor shape, making complete shape {shape_text(full)})"
        )
    else:
        text = f"specifies {len(dims)} dimensions (shape {shape_text(dims)})"
    raise BackendError(where + begin + text, "INVALID_ARG")


def check_scalar(model: ModelContext, name: str, dims: Sequence[int]) -> None:
    """Raises BackendError."""
    if any(size != 1 for size in dims):
        raise refusal(
            model,
            f"scalar tensor '{name}', should only provide 1 in the model configuration when the model doesn't support "
            f"batching. Model configuration provided: {shape_text(dims)}.",
        )


def fits(shape: Sequence[int], dims: Sequence[int], *, is_exact: bool) -> bool:
    if len(shape) != len(dims):
        return False
    return all(
        size == configured or (size == WILDCARD and not is_exact) for size, configured in zip(shape, dims, strict=True)
    )


def shape_text(shape: Sequence[int]) -> str:
    return f"[{','.join(map(str, shape))}]"


def refusal(model: ModelContext, text: str) -> BackendError:
    """The model cannot be loaded."""
    return BackendError(f"unable to load model '{model.name}', {text}", "INVALID_ARG")
