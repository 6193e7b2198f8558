"""Which tensors a model of text has."""

from __future__ import annotations

from collections.abc import Collection

from slipstream.router.language_backends.language_settings import LanguageSettings
from slipstream.router.language_backends.tensor_generation import RequestForm
from slipstream.router.language_backends.vllm_form import VllmForm


def form_of(backend: str, input_names: Collection[str], settings: LanguageSettings) -> RequestForm:
    return VllmForm(settings.sampling)
