"""Models that no program here can compute, and what their owners can do instead."""

from __future__ import annotations

from collections.abc import Iterator

from tritonclient.grpc.model_config_pb2 import ModelConfig

from slipstream.router.model_repository.backend_directory import BackendDirectory
from slipstream.router.model_repository.config.backends import ENSEMBLE
from slipstream.router.model_repository.config.config_fault import ConfigFault
from slipstream.router.model_repository.read_options import ReadOptions
from slipstream.router.tensors.infer_error import InferErrorCode

BATCHING_LIBRARY = "TRITON_BATCH_STRATEGY_PATH"  # a parameter

EXPORT = "export the model to ONNX (backend 'onnxruntime') or with torch.export (backend 'pytorch')"
LANGUAGE = "serve the checkpoint that the engine was made from with backend 'vllm' or 'tensorrtllm'"
TEST = "it is a backend of Triton's tests: write it as a Python model"
PYTHON = "write the model in Python (backend 'python')"

# Backends of Triton that are not here -> why, and what to do instead.
INSTEAD = {
    "tensorrt": f"a plan is made for one GPU and one version of TensorRT: {EXPORT} from what the plan was built from",
    "tensorflow": f"TensorFlow is not among the backends: {EXPORT}, for example with tf2onnx",
    "dali": f"DALI pipelines are not served: {PYTHON}, with the same steps in torchvision or Pillow",
    "fastertransformer": f"FasterTransformer is not served: {LANGUAGE}",
    "caffe2": f"Caffe2 is not served: {EXPORT}",
    "paddle": f"PaddlePaddle is not served: {EXPORT}, for example with paddle2onnx, or to OpenVINO",
    "armnn_tflite": f"TensorFlow Lite is not served: {EXPORT}, for example with tf2onnx",
    "mlflow": f"MLflow's backend is not served: {PYTHON}, which calls mlflow.pyfunc.load_model",
    "hugectr": f"HugeCTR is not served: {EXPORT}",
    "hps": f"HugeCTR's parameter server is not served: {EXPORT}",
    "nvtabular": f"NVTabular is not served: {PYTHON}",
    "square": TEST,
    "repeat": TEST,
    "identity": TEST,
    "sequence": TEST,
    "dyna_sequence": TEST,
    "distributed_addsub": TEST,
    "implicit_state": TEST,
    "query": TEST,
    "iterative_sequence": TEST,
}
ANOTHER = "a backend that is not Slipstream's needs the folder repository.backend_directory (docs/how-to/backends.md)"


def unserved_faults(config: ModelConfig, options: ReadOptions) -> Iterator[ConfigFault]:
    """Of a model that asks for a program that is not here: a backend, or a library that forms batches."""
    if not options.serves(config.backend):
        if config.platform == ENSEMBLE:
            text = f"ensemble '{config.name}': ensembles are not served"
            yield ConfigFault("platform", text, InferErrorCode.UNSUPPORTED)
        else:
            yield ConfigFault("backend", unserved_text(config.backend, options.backend_directory))
    if BATCHING_LIBRARY in config.parameters:
        text = f"model '{config.name}': libraries that form batches are not served"
        yield ConfigFault(f"parameters.{BATCHING_LIBRARY}", text, InferErrorCode.UNSUPPORTED)


def unserved_text(backend: str, directory: BackendDirectory) -> str:
    """It begins as Triton's, which clients look for."""
    instead = INSTEAD.get(backend) or ANOTHER
    if directory.folder is not None and backend not in INSTEAD:
        instead = f"there is neither backend.py nor model.py in {directory.folder / backend}"
    return (
        f"unable to find backend library for backend '{backend}', try specifying runtime on the model configuration. "
        f"Here: {instead}"
    )
