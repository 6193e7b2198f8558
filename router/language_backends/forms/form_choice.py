"""Which tensors a model of text has."""

from __future__ import annotations

from collections.abc import Collection

from slipstream.router.language_backends.forms.vllm_form import VllmForm
from slipstream.router.language_backends.generation.tensor_generation import RequestForm
from slipstream.router.language_backends.settings.language_settings import LanguageSettings


def form_of(backend: str, input_names: Collection[str], settings: LanguageSettings) -> RequestForm:
    return VllmForm(settings.sampling)
