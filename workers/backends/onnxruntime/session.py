"""A session of ONNX Runtime, with the settings of a configuration."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnxruntime

from slipstream.workers.backends.backend import BackendError, ModelContext
from slipstream.workers.backends.model_settings import default_threads, truth, whole_number

LEVELS = {
    -1: onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC,
    1: onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED,
    2: onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL,
}
CUDA = "CUDAExecutionProvider"
ACCELERATORS = {
    "cuda": CUDA,
    "tensorrt": "TensorrtExecutionProvider",
    "openvino": "OpenVINOExecutionProvider",
}
DEVICE_ALLOCATOR = "session.use_device_allocator_for_initializers"


def new_session(model: ModelContext, path: Path, *, for_its_shapes: bool = False) -> onnxruntime.InferenceSession:
    """Reads the file. `for_its_shapes`: nothing will be computed. Raises BackendError."""
    options = onnxruntime.SessionOptions() if for_its_shapes else session_options(model)
    if for_its_shapes:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.intra_op_num_threads = options.inter_op_num_threads = 1
    for library in model.config.get("model_operations", {}).get("op_library_filename", ()):
        options.register_custom_ops_library(library)
    providers = ["CPUExecutionProvider"] if for_its_shapes else execution_providers(model)
    try:
        return onnxruntime.InferenceSession(str(path), options, providers=providers)
    except Exception as error:  # of a dozen classes of ONNX Runtime, whose common one is Exception
        raise BackendError(f"onnx runtime error: {error}", "INTERNAL") from error


def session_options(model: ModelContext) -> onnxruntime.SessionOptions:
    """Raises BackendError for a setting that makes no sense."""
    options = onnxruntime.SessionOptions()
    parameters = model.parameters
    level = int(model.config.get("optimization", {}).get("graph", {}).get("level", 0))
    options.graph_optimization_level = LEVELS.get(level, onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL)
    options.execution_mode = execution_mode(model)
    options.intra_op_num_threads = num_threads(model, "intra_op_thread_count") or default_threads(model)
    options.inter_op_num_threads = num_threads(model, "inter_op_thread_count") or default_threads(model)
    options.enable_cpu_mem_arena = truth(model, "enable_mem_arena", parameters.get("enable_mem_arena"), True)
    options.enable_mem_pattern = truth(model, "enable_mem_pattern", parameters.get("enable_mem_pattern"), True)
    if DEVICE_ALLOCATOR in parameters:
        options.add_session_config_entry(DEVICE_ALLOCATOR, parameters[DEVICE_ALLOCATOR])
    return options


def num_threads(model: ModelContext, name: str) -> int:
    """Of the configuration, else of the backend; 0: neither says so."""
    return whole_number(model, name, model.parameters.get(name) or model.settings.get(name))


def execution_mode(model: ModelContext) -> onnxruntime.ExecutionMode:
    mode = whole_number(model, "execution_mode", model.parameters.get("execution_mode"))
    if mode not in (0, 1):
        text = "Invalid configuration value provided. Expected values for  execution_mode are 0 or 1 but got "
        raise BackendError(f"{text}{mode} .", "INVALID_ARG")
    return onnxruntime.ExecutionMode.ORT_PARALLEL if mode else onnxruntime.ExecutionMode.ORT_SEQUENTIAL


def execution_providers(model: ModelContext) -> list[Any]:
    """What computes the graph, the first that can wins. Raises BackendError for one that is not there."""
    available = onnxruntime.get_available_providers()
    accelerators = model.config.get("optimization", {}).get("execution_accelerators", {})
    device = "gpu" if model.kind == "GPU" else "cpu"
    providers: list[Any] = []
    for accelerator in accelerators.get(f"{device}_execution_accelerator", ()):
        name = accelerator["name"]
        provider = ACCELERATORS.get(name)
        if provider not in available:
            raise BackendError(f"unknown Execution Accelerator '{name}' is requested", "INVALID_ARG")
        options = dict(accelerator.get("parameters", {}))
        providers.append((provider, {**options, "device_id": str(model.device)} if device == "gpu" else options))
    if device == "gpu":
        if CUDA not in available:
            text = (
                f"instance '{model.instance}' is to run on a GPU, which the installed onnxruntime cannot use: install "
            )
            raise BackendError(f"{text}onnxruntime-gpu in its place", "UNAVAILABLE")
        providers.append((CUDA, {"device_id": str(model.device)}))
    return [*providers, "CPUExecutionProvider"]
