"""Backend `onnxruntime`: completes and loads a model in an ONNX file."""

from __future__ import annotations

from pathlib import Path

from slipstream.workers.backends.backend import Config, LoadedModel, ModelContext
from slipstream.workers.backends.file_checks import check_exists
from slipstream.workers.backends.onnxruntime.completion import complete_from_file
from slipstream.workers.backends.onnxruntime.onnx_file import OnnxFile
from slipstream.workers.backends.onnxruntime.onnx_model import OnnxModel
from slipstream.workers.backends.onnxruntime.session import new_session
from slipstream.workers.backends.onnxruntime.validation import check_file


def complete(model: ModelContext) -> Config:
    if model.config.get("input") and model.config.get("output"):
        return model.config
    return complete_from_file(model, OnnxFile.of(new_session(model, onnx_path(model), for_its_shapes=True)))


def load(model: ModelContext) -> LoadedModel:
    session = new_session(model, onnx_path(model))
    file = OnnxFile.of(session)
    check_file(model, file)
    return OnnxModel(session, file, model)


def onnx_path(model: ModelContext) -> Path:
    """`model.onnx` may be a folder, with the file of that name and those that it refers to. Raises BackendError."""
    path = model.model_file
    if path.is_dir():
        path = path / "model.onnx"
    check_exists(model, path)
    return path
