"""Whether endpoints fit the models that serve now: what would fail at the first request is said in the log."""

from __future__ import annotations

from collections.abc import Iterator

from slipstream.router.api.tensors.audio.speech_run import AUDIO, TEXTS
from slipstream.router.api.tensors.chat.text_call import TEXT_INPUTS as CHAT_INPUTS
from slipstream.router.api.tensors.chat.text_call import TEXT_OUTPUTS
from slipstream.router.api.tensors.embeddings.text_vectors import SENTENCE_OUTPUTS, TEXT_INPUTS
from slipstream.router.api.tensors.images.images_api import IMAGES, PIXELS, PROMPTS
from slipstream.router.api.tensors.models.endpoint_table import EndpointTable, NamedEndpoint
from slipstream.router.api.tensors.models.model_tensors import NUMBERS, TEXT, ModelTensors
from slipstream.router.api.tensors.rerank.pair_scores import SCORE_OUTPUTS, text_inputs
from slipstream.router.api.tensors.text.token_inputs import TokenInputs
from slipstream.router.config.endpoints_config import (
    ChatEndpoint,
    EmbeddingsEndpoint,
    ImagesEndpoint,
    RerankEndpoint,
    TranscriptionsEndpoint,
)
from slipstream.router.http.http_error import HttpError
from slipstream.router.tensors.infer_error import InferError
from slipstream.router.tensors.infer_service import InferService


def endpoint_problems(table: EndpointTable, service: InferService) -> Iterator[str]:
    """A sentence for each endpoint that cannot be served now."""
    for endpoint in table:
        if isinstance(endpoint.config, RerankEndpoint) and endpoint.config.embeddings:
            continue  # the endpoint of that name is checked
        try:
            spec = service.spec_of(endpoint.model, endpoint.config.version)
            check(endpoint, ModelTensors(endpoint.title, spec, endpoint.config.inputs))
        except InferError as error:
            yield f"{endpoint.title}: {error.message}"
        except HttpError as error:
            yield error.message


def check(endpoint: NamedEndpoint, tensors: ModelTensors) -> None:
    """Raises HttpError."""
    config = endpoint.config
    if isinstance(config, EmbeddingsEndpoint):
        tensors.output(config.output, NUMBERS, SENTENCE_OUTPUTS)
        if TokenInputs.of(tensors) is None:
            tensors.text_input("text", TEXT_INPUTS)
    elif isinstance(config, RerankEndpoint):
        tensors.output(config.output, NUMBERS, SCORE_OUTPUTS)
        if "query" in config.inputs or TokenInputs.of(tensors) is None:
            text_inputs(tensors)
    elif isinstance(config, ImagesEndpoint):
        tensors.text_input("prompt", PROMPTS)
        tensors.output(config.output, PIXELS, IMAGES)
    elif isinstance(config, TranscriptionsEndpoint):
        tensors.input_of("audio", AUDIO)
        tensors.output(config.outputs.get("text", ""), frozenset({TEXT}), TEXTS, "outputs.text")
    elif isinstance(config, ChatEndpoint):
        tensors.text_input("text", CHAT_INPUTS)
        tensors.output(config.outputs.get("text", ""), frozenset({TEXT}), TEXT_OUTPUTS, "outputs.text")
