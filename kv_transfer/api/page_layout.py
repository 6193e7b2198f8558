"""Where the bytes of a KV page are on each rank, and who sends what to whom if the two sides' TP degrees differ.

The pool of a rank, seen as bytes, is `[layers, pages, heads of the rank, head_bytes]`; `head_bytes` holds K and V of
one head of one page, which are one contiguous run. Rank r of n owns the r-th n-th of the model's KV heads, so any
re-layout is a set of *streams*: a run of heads that one source rank has and one destination rank wants.

    source TP=4      | h0 h1 | h2 h3 | h4 h5 | h6 h7 |
                        0->0    1->0    2->1    3->1      four streams of two heads
    destination TP=2 | h0 h1   h2 h3 | h4 h5   h6 h7 |
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

PageIds = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class PoolGeometry:
    """The shape of one rank's pool."""

    num_layers: int
    num_pages: int
    num_heads: int  # on this rank
    head_bytes: int

    @property
    def page_bytes(self) -> int:
        """Bytes of one page in one layer."""
        return self.num_heads * self.head_bytes


@dataclass(frozen=True, slots=True)
class HeadStream:
    """`num_heads` heads that `source_rank` sends to `destination_rank`. First heads are counted within each rank."""

    source_rank: int
    destination_rank: int
    source_first_head: int
    destination_first_head: int
    num_heads: int

    @property
    def source_heads(self) -> range:
        return range(self.source_first_head, self.source_first_head + self.num_heads)

    @property
    def destination_heads(self) -> range:
        return range(self.destination_first_head, self.destination_first_head + self.num_heads)


def streams_between(source_tp: int, destination_tp: int, num_kv_heads: int) -> tuple[HeadStream, ...]:
    """All streams of a hand-off, ordered by source rank, then destination rank.

    Raises ValueError if a degree does not divide the number of heads: ranks that share a head are not supported.
    """
    for name, tp in (("source", source_tp), ("destination", destination_tp)):
        if tp < 1 or num_kv_heads % tp:
            raise ValueError(f"the {name}'s tensor-parallel degree {tp} does not divide {num_kv_heads} KV heads")
    source_heads = num_kv_heads // source_tp
    destination_heads = num_kv_heads // destination_tp
    streams = []
    head = 0
    while head < num_kv_heads:
        source_rank, source_first = divmod(head, source_heads)
        destination_rank, destination_first = divmod(head, destination_heads)
        num_heads = min(source_heads - source_first, destination_heads - destination_first)
        streams.append(HeadStream(source_rank, destination_rank, source_first, destination_first, num_heads))
        head += num_heads
    return tuple(streams)
