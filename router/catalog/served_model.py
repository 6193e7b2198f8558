"""The model that a router serves, as its HTTP side needs it."""

from __future__ import annotations

from dataclasses import dataclass

from slipstream.router.catalog.sampling_defaults import PLAIN, SamplingDefaults
from slipstream.router.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class ServedModel:
    """`name` is what clients ask for; `defaults` are those of requests that leave fields of sampling out."""

    name: str
    tokenizer: Tokenizer
    defaults: SamplingDefaults = PLAIN
