"""What keeps endpoints from being served is known before the first request."""

from __future__ import annotations

from slipstream.router.api.tensors.endpoint_checks import endpoint_problems
from slipstream.router.api.tensors.models.endpoint_table import EndpointTable
from slipstream.router.config.endpoints_config import (
    ChatEndpoint,
    EmbeddingsEndpoint,
    EndpointsConfig,
    ImagesEndpoint,
    RerankEndpoint,
    TranscriptionsEndpoint,
)
from slipstream.router.tensors.model_spec import TensorSpec
from tests.support.router.fake_tensor_service import FakeTensorService, keep, tensor_model

TEXT = TensorSpec("text", "BYTES", (1,))
VECTOR = TensorSpec("embedding", "FP32", (3,))
CONFIG = EndpointsConfig(
    embeddings={"m": EmbeddingsEndpoint()},
    rerank={"m": RerankEndpoint(), "near": RerankEndpoint(embeddings="m")},
    images={"m": ImagesEndpoint(inputs={"seed": "SEED"})},
    transcriptions={"m": TranscriptionsEndpoint()},
    chat={"m": ChatEndpoint(), "gone": ChatEndpoint()},
)


def test_each_endpoint_that_does_not_fit_its_model_is_one_sentence() -> None:
    models = FakeTensorService()
    models.add(tensor_model("m", [TEXT], [VECTOR]), keep)
    problems = list(endpoint_problems(EndpointTable(CONFIG), models))
    assert [problem.partition(":")[0] for problem in problems] == [
        "Endpoint 'm' (rerank)",
        "Endpoint 'm' (transcriptions)",
        "Endpoint 'm' (chat)",
        "Endpoint 'gone' (chat)",
    ]
    assert problems[2].endswith("outputs.text must name one of the model's outputs: embedding (FP32 [3]).")
    assert problems[3] == "Endpoint 'gone' (chat): Request for unknown model: 'gone' is not found"


def test_a_model_without_texts_fits_none_but_by_token_ids() -> None:
    models = FakeTensorService()
    numbers = TensorSpec("input_ids", "INT64", (-1,))
    models.add(tensor_model("m", [numbers], [VECTOR]), keep)
    problems = list(endpoint_problems(EndpointTable(CONFIG), models))
    assert [problem.partition(":")[0] for problem in problems[:2]] == [
        "Endpoint 'm' (images)",
        "Endpoint 'm' (transcriptions)",
    ]
