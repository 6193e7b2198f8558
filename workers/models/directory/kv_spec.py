"""What a model keeps of each token: the shape of its KV pages. Free of torch.

The pool of a rank is, as bytes, `[slots, pages, units of the rank, unit_bytes]`, the same for all layers. A slot is a
layer where all layers have one window (see `page_groups`). A *unit* is the smallest run of KV heads that is dealt out
to a tensor-parallel rank: where layers differ in their number of heads, it is more heads of one layer than of another.
A layer that stores less than the largest leaves a gap at the end of its units.

    unit of a layer   | head 0: K of page_tokens tokens, then V | head 1: K, V | ... | gap |

A layer that chooses the tokens it attends to keeps the keys that it chooses by behind the values of each head.

A sequence may have a state, too, of layers whose memory does not grow with the text (convolutions, recurrent layers).
It lies in pages of the same pool: where layers store keys, in as many beside those of its tokens as it fills; where no
layer does, a page is as large as a state, and a sequence has one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from slipstream.workers.models.directory.page_groups import PageGroups


@dataclass(frozen=True, slots=True)
class LayerKv:
    """What a layer stores of a token, over all ranks: `num_heads` keys of `key_dim` numbers and as many values of
    `value_dim`. No query of it sees keys that are `window` or more tokens before it (None: it may see all). With an
    indexer, which chooses the tokens that it attends to, each head holds `index_dim` numbers of the indexer's keys."""

    num_heads: int
    key_dim: int
    value_dim: int
    window: int | None = None
    index_dim: int = 0

    @property
    def numbers(self) -> int:
        """Of a token, in all heads."""
        return self.num_heads * (self.key_dim + self.value_dim + self.index_dim)


@dataclass(frozen=True, slots=True)
class KvSpec:
    """`layers` are those that store something, in the order in which they are computed. Layers that read what another
    one has stored are not among them. A sequence also has a state of `state_bytes`."""

    layers: tuple[LayerKv, ...]
    state_bytes: int = 0

    @property
    def num_units(self) -> int:
        """Into which the KV heads of each layer can be divided; a tensor-parallel degree must divide it."""
        return math.gcd(*(layer.num_heads for layer in self.layers)) or 1

    @property
    def is_state_only(self) -> bool:
        """Whether nothing is stored of single tokens."""
        return not self.layers

    @property
    def has_indexers(self) -> bool:
        """Whether layers choose, by keys that they keep for it, the tokens that they attend to."""
        return any(layer.index_dim for layer in self.layers)

    @property
    def unit_numbers(self) -> int:
        """Numbers that a unit holds of a token, in the largest layer."""
        return max((layer.numbers for layer in self.layers), default=0) // (self.num_units or 1)

    @property
    def is_uniform(self) -> bool:
        """Whether all layers store heads of the same number and one size, as the native kernels ask for."""
        sizes = {(one.num_heads, one.key_dim, one.value_dim, one.index_dim) for one in self.layers}
        return len(sizes) == 1 and self.layers[0].key_dim == self.layers[0].value_dim and not self.layers[0].index_dim

    @property
    def page_groups(self) -> PageGroups:
        """How the layers share pages. The last token of a prompt is always part of what is seen, so that its page is
        there: a window is at least 2."""
        return PageGroups.of(tuple(one.window and max(one.window, 2) for one in self.layers))

    @property
    def head_dim(self) -> int:
        """The size of keys where the spec is uniform; of the largest layer's keys elsewhere."""
        return max((layer.key_dim for layer in self.layers), default=0)

    @staticmethod
    def uniform(num_heads: int, head_dim: int, windows: tuple[int | None, ...]) -> KvSpec:
        """All layers alike but for their windows."""
        return KvSpec(tuple(LayerKv(num_heads, head_dim, head_dim, window) for window in windows))
