"""Backend `openvino`: completes and loads a model that OpenVINO reads."""

from __future__ import annotations

from pathlib import Path

import openvino

from slipstream.workers.backends.backend import BackendError, Config, LoadedModel, ModelContext
from slipstream.workers.backends.file_checks import check_exists
from slipstream.workers.backends.openvino.completion import complete_from_file
from slipstream.workers.backends.openvino.device_settings import DeviceSettings, skips_dynamic_batches
from slipstream.workers.backends.openvino.openvino_file import OpenvinoFile
from slipstream.workers.backends.openvino.openvino_model import OpenvinoModel
from slipstream.workers.backends.openvino.validation import check_file


def complete(model: ModelContext) -> Config:
    if model.config.get("input") and model.config.get("output"):
        return model.config
    return complete_from_file(model, OpenvinoFile.of(read_model(model, openvino.Core())))


def load(model: ModelContext) -> LoadedModel:
    if model.kind == "GPU":
        text = f"model '{model.name}': backend 'openvino' computes on CPUs, the kind of its instances must be KIND_CPU"
        raise BackendError(text, "UNSUPPORTED")
    settings, core = DeviceSettings.of(model), openvino.Core()
    if settings.extension:
        core.add_extension(settings.extension)
    graph = read_model(model, core)
    try:
        if model.max_batch_size and not skips_dynamic_batches(model):
            let_batch_vary(graph)
        file = OpenvinoFile.of(graph)
        check_file(model, file)
        return OpenvinoModel(model, file, core.compile_model(graph, "CPU", settings.properties))
    except RuntimeError as error:
        raise BackendError(f"openvino error: {error}", "INTERNAL") from error


def read_model(model: ModelContext, core: openvino.Core) -> openvino.Model:
    """Raises BackendError."""
    path = openvino_path(model)
    try:
        return core.read_model(str(path))
    except RuntimeError as error:
        raise BackendError(f"failed to load model '{model.name}': {error}", "INTERNAL") from error


def openvino_path(model: ModelContext) -> Path:
    """`model.xml` has its weights in `model.bin` beside it. Raises BackendError."""
    check_exists(model, model.model_file)
    return model.model_file


def let_batch_vary(graph: openvino.Model) -> None:
    """Makes batches of any size of a model that was made for one size. Raises RuntimeError if it cannot be."""
    shapes = {each: each.get_partial_shape() for each in graph.inputs}
    if all(shape.rank.is_static and len(shape) and shape[0].is_static for shape in shapes.values()):
        graph.reshape({each: [-1, *list(shape)[1:]] for each, shape in shapes.items()})
