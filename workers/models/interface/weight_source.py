"""Where a model family reads its weights from, in the form that the ops of its device want."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from slipstream.kernels.moe.gate import ExpertGate
from slipstream.kernels.moe.grouped_experts import ExpertWeights
from slipstream.kernels.ops import Weight
from slipstream.workers.models.sharding.rank_share import ExpertsShare, LinearShare, TensorPart


@dataclass(frozen=True, slots=True)
class Linear:
    """`weight` is [out, in], packed (see `Ops.pack_weight`) or quantised. Where the results of ranks are summed,
    only rank 0 has a bias that is not zero."""

    weight: Weight
    bias: Tensor | None


class WeightSource(Protocol):
    """What it returns is for ops alone: with native kernels it is no tensor but a place in a packed file. Methods raise
    ModelError."""

    def vector(self, part: TensorPart, *, plus: float = 0.0) -> Tensor:
        """[n], and `plus` added to each number in float32: then it is float32 for all ops (norms that are stored as
        what they differ from one)."""

    def head_vectors(self, parts: list[TensorPart], *, plus: float = 0.0) -> Tensor:
        """One vector [head_dim] for each head, as `vector`: [heads, head_dim]."""

    def linear(self, share: LinearShare, *, gated: bool = False) -> Linear:
        """Projections of one input, one below the other. `gated`: it is for `Ops.norm_gated`."""

    def router(self, share: LinearShare) -> Linear:
        """Like `linear`, but never quantised: what little memory it takes decides which experts compute."""

    def experts(self, share: ExpertsShare, gate: ExpertGate) -> ExpertWeights:
        """Those of the rank."""

    def embedding(self, part: TensorPart, num_rows: int) -> Tensor:
        """The rank's rows of the embedding; zero rows follow up to `num_rows`."""

    def output_layer(self, part: TensorPart, num_rows: int, embedding: Tensor, *, is_tied: bool) -> Weight:
        """Like `embedding`, for products: the numbers of `embedding` if it `is_tied` to that."""
