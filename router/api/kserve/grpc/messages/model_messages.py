"""What a model is, as messages."""

from __future__ import annotations

from google.protobuf import json_format
from tritonclient.grpc import model_config_pb2, service_pb2

from slipstream.router.api.kserve.server_facts import shape_with_batch
from slipstream.router.tensors.model_spec import ModelSpec


def model_metadata(spec: ModelSpec) -> service_pb2.ModelMetadataResponse:
    """Shapes have the batch dimension."""
    tensor = service_pb2.ModelMetadataResponse.TensorMetadata
    return service_pb2.ModelMetadataResponse(
        name=spec.name,
        versions=spec.versions or (spec.version,),
        platform=spec.platform,
        inputs=[tensor(name=t.name, datatype=t.datatype, shape=shape_with_batch(t, spec)) for t in spec.inputs],
        outputs=[tensor(name=t.name, datatype=t.datatype, shape=shape_with_batch(t, spec)) for t in spec.outputs],
    )


def model_config(spec: ModelSpec) -> service_pb2.ModelConfigResponse:
    config = json_format.Parse(spec.config_json, model_config_pb2.ModelConfig(), ignore_unknown_fields=True)
    return service_pb2.ModelConfigResponse(config=config)
