"""The server's models, as another model may load, unload and look at them."""

from __future__ import annotations

from slipstream.workers.backends.python.model_api.server_link import PROCESS
from slipstream.workers.backends.python.model_api.tensors.errors import TritonModelException


def load_model(model_name: str, config: str = "", files: dict[str, bytes] | None = None) -> None:
    """Returns when the model is ready. `config` is JSON; `files` are `file:<version>/<path>` with their contents."""
    if files is not None and not isinstance(files, dict):
        raise TritonModelException(
            f"failed to load model '{model_name}', files should be a dictionary of file paths and file contents"
        )
    try:
        PROCESS.link.control("load", model_name, config=config, files=files or {})
    except TritonModelException as error:
        raise TritonModelException(f"Failed to load model: {PROCESS.link.refusal(str(error))}") from None


def unload_model(model_name: str, unload_dependents: bool = False) -> None:
    try:
        PROCESS.link.control("unload", model_name, unload_dependents=unload_dependents)
    except TritonModelException as error:
        raise TritonModelException(f"Failed to unload model: {PROCESS.link.refusal(str(error))}") from None


def is_model_ready(model_name: str, model_version: str = "") -> bool:
    try:
        return bool(PROCESS.link.control("is_ready", model_name, model_version=model_version))
    except TritonModelException as error:
        raise TritonModelException(f"Failed to check model readiness: {PROCESS.link.refusal(str(error))}") from None


def get_model_dir() -> str:
    """The folder of the version that this process serves."""
    return PROCESS.link.model_dir()
