"""Indexers: the parts of a model that choose, by keys of their own, the tokens that a layer attends to."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn
from transformers import PreTrainedModel

from slipstream.workers.models.directory.json_keys import ModelError

# How much an indexer chooses, by the attributes of the modules of transformers that are indexers; and so little that
# it chooses among the tokens of a short text.
FEW: tuple[dict[str, int], ...] = (
    {"index_topk": 4},  # tokens: DeepSeek V3.2 and those after it
    {"token_budget": 4, "compress_ratio": 2, "block_topk": 2},  # tokens, of a block, blocks: Qwen4-Exp
    {"topk_blocks": 2, "block_size": 4, "local_blocks": 1},  # blocks, tokens of one, blocks that always are: MiniMax M3
)


@contextmanager
def few_chosen(model: PreTrainedModel) -> Iterator[None]:
    """Within it, indexers choose a few tokens only. Real ones choose some 2000, so that a short text would not show
    whether they choose well. Raises ModelError if none of its modules is known to be an indexer."""
    changed: list[tuple[nn.Module, str, int]] = []
    for module in model.modules():
        for few in FEW:
            if all(isinstance(getattr(module, name, None), int) for name in few):
                changed += [(module, name, getattr(module, name)) for name in few]
                for name, number in few.items():
                    setattr(module, name, number)
    if not changed:
        raise ModelError(f"{type(model).__name__} cannot be served: it has indexers of a form that is not known")
    try:
        yield
    finally:
        for module, name, number in changed:
            setattr(module, name, number)
