"""Our functions in the registries of transformers, under a name of their own, for as long as they are needed."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel

_numbers = itertools.count()


def register_attention(attention: Callable[..., Any], mask: Callable[..., Any] | None = None) -> str:
    """Registers an attention function; without a mask function, models that use it make no masks. Returns the name
    under which models find it."""
    name = f"slipstream_{next(_numbers)}"
    AttentionInterface.register(name, attention)
    if mask is not None:
        AttentionMaskInterface.register(name, mask)
    return name


def unregister_attention(name: str) -> None:
    AttentionInterface._global_mapping.pop(name, None)
    AttentionMaskInterface._global_mapping.pop(name, None)


@contextmanager
def attention_of(model: PreTrainedModel, name: str) -> Iterator[None]:
    """Within it, the model computes attention with the function registered as `name`. Raises ValueError if it does not
    use the registry."""
    # Each part has its own: where one does not use the registry, it and the model as a whole keep the name they had.
    parts = [module.config for module in model.modules() if isinstance(module, PreTrainedModel)]
    before = [config._attn_implementation for config in parts]
    set_attention(model, name)
    try:
        yield
    finally:
        for config, own in zip(parts, before, strict=True):
            config._attn_implementation_internal = own  # its property would set the parts of a part, too


def set_attention(model: PreTrainedModel, name: str) -> None:
    """Sets the attention function of a model and of all that it is made of."""
    model.set_attn_implementation(name)
