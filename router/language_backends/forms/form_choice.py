"""Which tensors a model of text has."""

from __future__ import annotations

from collections.abc import Collection

from slipstream.router.language_backends.forms.tensorrt_form import TOKENS_INPUT, TensorRtForm
from slipstream.router.language_backends.forms.vllm_form import VllmForm
from slipstream.router.language_backends.generation.tensor_generation import RequestForm
from slipstream.router.language_backends.settings.language_settings import TENSORRT_LLM_BACKEND, LanguageSettings


def form_of(backend: str, input_names: Collection[str], settings: LanguageSettings) -> RequestForm:
    """`input_names` are those that the model's configuration has."""
    if backend == TENSORRT_LLM_BACKEND:
        return TensorRtForm(settings, TOKENS_INPUT in input_names)
    return VllmForm(settings.sampling)
