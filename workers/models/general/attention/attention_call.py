"""What a model asks of its attention function: the calls of one pass, which are the same in every pass."""

from __future__ import annotations

from dataclasses import dataclass, replace

from slipstream.workers.models.directory.json_keys import ModelError
from slipstream.workers.models.directory.kv_spec import KvSpec, LayerKv
from slipstream.workers.models.sharding.rank_share import Rank


class NotFlatError(ModelError):
    """The model cannot run over a flat batch with our attention function. The text says why."""


class NoDecoderError(ModelError):
    """The model's tokens see those that come after them. The text says so."""


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
    for it writes (`stores`) and others only read. With `is_whole`, the model hands over the heads of all ranks, and
    wants the results of all."""

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
    is_whole: bool = False


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

    def on_rank(self, kv: KvSpec, tp: Rank) -> AttentionCalls:
        """Calls that were recorded on one rank of a group, as those of that rank's heads alone: attention that is
        computed whole on each rank is dealt out, too. Raises ModelError if they do not store what `kv` says."""
        calls = []
        for call in self.calls:
            if tp.size > 1 and call.num_kv_heads == kv.layers[call.layer].num_heads:
                heads, kv_heads = call.num_heads // tp.size, call.num_kv_heads // tp.size
                call = replace(call, num_heads=heads, num_kv_heads=kv_heads, is_whole=True)
            calls.append(call)
        on_rank = AttentionCalls(tuple(calls))
        if on_rank.kv_spec(tp.size) != kv:
            raise ModelError("the loaded model stores other keys and values than its configuration says")
        return on_rank
