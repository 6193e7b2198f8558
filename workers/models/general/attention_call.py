"""What a model asks of its attention function: the calls of one pass, which are the same in every pass."""

from __future__ import annotations

from dataclasses import dataclass

from slipstream.workers.models.directory.json_keys import ModelError
from slipstream.workers.models.directory.kv_spec import KvSpec, LayerKv


class NotFlatError(ModelError):
    """The model cannot run over a flat batch with our attention function. The text says why."""


@dataclass(frozen=True, slots=True)
class Visibility:
    """Which keys a query sees, all of them at its position or before: those less than `window` tokens before it, or
    those in its own chunk of `chunk` tokens, or all."""

    window: int | None = None
    chunk: int | None = None

    def first_key(self, position: int) -> int:
        """The first position that a query at `position` sees."""
        if self.window is not None:
            return max(0, position - self.window + 1)
        return 0 if self.chunk is None else position // self.chunk * self.chunk

    @property
    def span(self) -> int | None:
        """No query sees keys that are so many tokens before it, or more; None: there is no such number."""
        return self.window if self.chunk is None else self.chunk


@dataclass(frozen=True, slots=True)
class AttentionCall:
    """One call, with the heads of one rank. The keys and values are those of stored layer `layer`, which the first call
    for it writes (`stores`) and others only read."""

    num_heads: int
    num_kv_heads: int
    key_dim: int
    value_dim: int
    scale: float
    softcap: float | None
    has_sinks: bool
    visibility: Visibility
    layer: int
    stores: bool


@dataclass(frozen=True, slots=True)
class AttentionCalls:
    """All calls of a pass, in order."""

    calls: tuple[AttentionCall, ...]

    def kv_spec(self, tp: int = 1) -> KvSpec:
        """Of the whole model, if these are the calls of one of `tp` ranks. Where several calls read one layer, it keeps
        what the one that sees most needs."""
        layers: dict[int, LayerKv] = {}
        for call in self.calls:
            span = call.visibility.span
            if not call.stores:
                before = layers[call.layer].window
                span = None if before is None or span is None else max(before, span)
            layers[call.layer] = LayerKv(call.num_kv_heads * tp, call.key_dim, call.value_dim, span)
        return KvSpec(tuple(layers[index] for index in sorted(layers)))
