"""Which rows and columns of which stored tensors one rank holds, under the names of Hugging Face checkpoints. Free of
torch."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

from slipstream.workers.models.directory.json_keys import ModelError
from slipstream.workers.models.directory.model_config import ModelConfig
from slipstream.workers.models.directory.moe_config import MoeConfig

# Where a checkpoint has the experts of a layer: in tensors of their own, in two stacks of [experts, out, in], or in
# such stacks as blocks of MXFP4 and their scales.
ExpertForm = Literal["apart", "stacked", "blocks"]

EMBEDDING = "model.embed_tokens.weight"
LM_HEAD = "lm_head.weight"


@dataclass(frozen=True, slots=True)
class Rank:
    """Rank `rank` of a tensor-parallel group of `size`."""

    rank: int = 0
    size: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.size:
            raise ValueError(f"rank must be in 0 .. {self.size - 1}, got {self.rank}")

    def shard(self, count: int, what: str) -> slice:
        """This rank's share of `count` things. Raises ModelError if they cannot be dealt out evenly."""
        if count % self.size:
            raise ModelError(f"tensor parallel degree {self.size} does not divide {what} = {count}")
        share = count // self.size
        return slice(self.rank * share, (self.rank + 1) * share)

    def padded_share(self, count: int) -> int:
        """The largest share when `count` things are dealt out in equal runs, the last ones shorter or empty."""
        return -(-count // self.size)


@dataclass(frozen=True, slots=True)
class StoredNames:
    """What a checkpoint may have in one form or another. `embedding` and `lm_head` are the same tensor where they are
    tied."""

    embedding: str = EMBEDDING
    lm_head: str = LM_HEAD
    experts: ExpertForm = "apart"

    @classmethod
    def of(cls, config: ModelConfig, stored: Collection[str] | None = None) -> StoredNames:
        """Those of a checkpoint that holds the tensors `stored`; None: those that config.json speaks of.

        A head of its own counts, even if config.json ties it; and if only one of two tied tensors is stored, it is
        both. This is how transformers 5 reads such checkpoints (`PreTrainedModel.tie_weights`)."""
        experts = _expert_form(config, stored or ())
        if not config.tie_word_embeddings:
            return cls(experts=experts)
        if stored is None or LM_HEAD not in stored:
            return cls(EMBEDDING, EMBEDDING, experts)
        return cls(experts=experts) if EMBEDDING in stored else cls(LM_HEAD, LM_HEAD, experts)


@dataclass(frozen=True, slots=True)
class TensorPart:
    """Some rows of a stored tensor, [rows] or [rows, some columns]; or of one of several such, where it is a stack of
    them."""

    name: str
    stored_shape: tuple[int, ...]
    rows: slice
    columns: slice | None = None  # of a matrix; None: all
    item: int | None = None  # of a stack, [items, rows] or [items, rows, columns]
    is_transposed: bool = False  # the matrix is stored as [columns, rows]

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the vector or matrix that the rows are of."""
        shape = self.stored_shape if self.item is None else self.stored_shape[1:]
        return shape[::-1] if self.is_transposed else shape

    @property
    def is_vector(self) -> bool:
        return len(self.shape) == 1

    @property
    def num_rows(self) -> int:
        return len(range(self.rows.start, self.rows.stop, self.rows.step or 1))

    @property
    def num_columns(self) -> int:
        if self.columns is None:
            return self.shape[1]
        num_columns: int = self.columns.stop - self.columns.start
        return num_columns


@dataclass(frozen=True, slots=True)
class LinearShare:
    """A projection fused from parts, one below the other. `biases` go with the parts; where the results of ranks are
    summed, only rank 0 has any."""

    weights: tuple[TensorPart, ...]
    biases: tuple[TensorPart, ...] | None

    @property
    def num_rows(self) -> int:
        return sum(part.num_rows for part in self.weights)

    @property
    def num_columns(self) -> int:
        return self.weights[0].num_columns


@dataclass(frozen=True, slots=True)
class ExpertsShare:
    """The router of a layer, and the rank's part of its experts: of each of `first`, `first + 1`, ... one share."""

    router: LinearShare
    gate_up: tuple[LinearShare, ...]  # gate, up
    down: tuple[LinearShare, ...]
    first: int

    @property
    def linears(self) -> tuple[LinearShare, ...]:
        return (self.router, *self.gate_up, *self.down)


@dataclass(frozen=True, slots=True)
class LayerShare:
    attention_norm: TensorPart
    qkv: LinearShare  # query heads, key heads, value heads
    query_norm: TensorPart | None  # [head_dim], the same for all heads
    key_norm: TensorPart | None
    output: LinearShare
    mlp_norm: TensorPart
    gate_up: LinearShare | None  # gate, up; None where there are experts
    down: LinearShare | None
    experts: ExpertsShare | None = None
    sinks: TensorPart | None = None  # [heads]
    attention_post_norm: TensorPart | None = None  # of what attention and the feed-forward block add
    mlp_post_norm: TensorPart | None = None

    @property
    def dense(self) -> tuple[LinearShare, LinearShare]:
        """Gate and up, and down, of a layer without experts."""
        assert self.gate_up is not None
        assert self.down is not None
        return self.gate_up, self.down

    @property
    def linears(self) -> tuple[LinearShare, ...]:
        dense = tuple(linear for linear in (self.gate_up, self.down) if linear is not None)
        return (self.qkv, self.output, *dense, *(() if self.experts is None else self.experts.linears))


@dataclass(frozen=True, slots=True)
class RankShare:
    """The vocabulary is dealt out in equal runs of `vocab_share`; the last ranks hold fewer rows than that or none."""

    vocab_share: int
    embedding: TensorPart
    layers: tuple[LayerShare, ...]
    final_norm: TensorPart
    lm_head: TensorPart

    @property
    def is_tied(self) -> bool:
        """Whether the output layer's weight is the embedding."""
        return self.lm_head == self.embedding

    @staticmethod
    def of(
        config: ModelConfig, tp: Rank, names: StoredNames | None = None, *, expert_parallel: bool = False
    ) -> RankShare:
        """`names` None: what config.json speaks of. A rank has a run of the inner dimension of each expert or, with
        `expert_parallel`, a run of the experts. Raises ModelError if heads, feed-forward block or experts cannot be
        dealt out to the group."""
        names = StoredNames.of(config) if names is None else names
        return RankShare(
            vocab_share=tp.padded_share(config.vocab_size),
            embedding=_vocabulary(names.embedding, config, tp),
            layers=tuple(
                _layer(i, config, tp, names.experts, expert_parallel=expert_parallel) for i in range(config.num_layers)
            ),
            final_norm=_whole("model.norm.weight", config.hidden_size),
            lm_head=_vocabulary(names.lm_head, config, tp),
        )


def _layer(index: int, config: ModelConfig, tp: Rank, form: ExpertForm, *, expert_parallel: bool) -> LayerShare:
    name = f"model.layers.{index}"
    c, attention, mlp = config, f"{name}.self_attn", f"{name}.mlp"
    q_rows = _scale(tp.shard(c.num_heads, "num_attention_heads"), c.head_dim)
    kv_rows = _scale(tp.shard(c.num_kv_heads, "num_key_value_heads"), c.head_dim)
    q_size, kv_size = c.num_heads * c.head_dim, c.num_kv_heads * c.head_dim
    qkv = (
        (f"{attention}.q_proj", q_size, q_rows),
        (f"{attention}.k_proj", kv_size, kv_rows),
        (f"{attention}.v_proj", kv_size, kv_rows),
    )
    mlp_norm = "pre_feedforward" if c.post_norms else "post_attention"
    gate_up = down = experts = None
    if c.moe is not None and c.moe.in_layers[index]:
        experts = _experts(mlp, c, c.moe, tp, form, expert_parallel=expert_parallel)
    else:
        inner = tp.shard(c.intermediate_size, "intermediate_size")
        halves = tuple((f"{mlp}.{half}_proj", c.intermediate_size, inner) for half in ("gate", "up"))
        gate_up = _by_rows(halves, c.hidden_size, has_bias=c.mlp_bias)
        down = _by_columns(f"{mlp}.down_proj", c.hidden_size, c.intermediate_size, inner, tp, has_bias=c.mlp_bias)
    return LayerShare(
        attention_norm=_whole(f"{name}.input_layernorm.weight", c.hidden_size),
        qkv=_by_rows(qkv, c.hidden_size, has_bias=c.qkv_bias),
        query_norm=_whole(f"{attention}.q_norm.weight", c.head_dim) if c.qk_norm else None,
        key_norm=_whole(f"{attention}.k_norm.weight", c.head_dim) if c.qk_norm else None,
        output=_by_columns(f"{attention}.o_proj", c.hidden_size, q_size, q_rows, tp, has_bias=c.output_bias),
        mlp_norm=_whole(f"{name}.{mlp_norm}_layernorm.weight", c.hidden_size),
        gate_up=gate_up,
        down=down,
        experts=experts,
        sinks=TensorPart(f"{attention}.sinks", (c.num_heads,), tp.shard(c.num_heads, "num_attention_heads"))
        if c.attention_sinks
        else None,
        attention_post_norm=_whole(f"{name}.post_attention_layernorm.weight", c.hidden_size) if c.post_norms else None,
        mlp_post_norm=_whole(f"{name}.post_feedforward_layernorm.weight", c.hidden_size) if c.post_norms else None,
    )


def _expert_form(config: ModelConfig, stored: Collection[str]) -> ExpertForm:
    if config.moe is None or True not in config.moe.in_layers:
        return "apart"
    stack = f"model.layers.{config.moe.in_layers.index(True)}.mlp.experts.gate_up_proj"
    if f"{stack}_blocks" in stored:
        return "blocks"
    return "stacked" if stack in stored or config.family == "gpt_oss" else "apart"


def _experts(
    mlp: str, config: ModelConfig, moe: MoeConfig, tp: Rank, form: ExpertForm, *, expert_parallel: bool
) -> ExpertsShare:
    whole = slice(0, moe.intermediate_size)
    if expert_parallel:
        own, inner = tp.shard(moe.num_experts, "the number of experts"), whole
    else:
        own, inner = slice(0, moe.num_experts), tp.shard(moe.intermediate_size, "the intermediate size of an expert")
    router = f"{mlp}.router" if config.family == "gpt_oss" else f"{mlp}.gate"
    router_rows = ((router, moe.num_experts, slice(0, moe.num_experts)),)
    alone = tp if not expert_parallel else Rank()  # an expert's bias is added once, by the rank that has the expert
    numbers = range(own.start, own.stop)
    if form == "apart":
        shares = [
            _expert_apart(f"{mlp}.experts.{number}", config.hidden_size, moe.intermediate_size, inner, alone)
            for number in numbers
        ]
    else:
        shares = [_expert_of_stack(f"{mlp}.experts", config, moe, number, inner, alone, form) for number in numbers]
    return ExpertsShare(
        router=_by_rows(router_rows, config.hidden_size, has_bias=moe.has_bias),
        gate_up=tuple(gate_up for gate_up, _ in shares),
        down=tuple(down for _, down in shares),
        first=own.start,
    )


def _expert_apart(
    name: str, hidden_size: int, inner_size: int, inner: slice, tp: Rank
) -> tuple[LinearShare, LinearShare]:
    """Gate and up, and down."""
    halves = tuple((f"{name}.{half}_proj", inner_size, inner) for half in ("gate", "up"))
    return (
        _by_rows(halves, hidden_size, has_bias=False),
        _by_columns(f"{name}.down_proj", hidden_size, inner_size, inner, tp, has_bias=False),
    )


def _expert_of_stack(
    name: str, config: ModelConfig, moe: MoeConfig, item: int, inner: slice, tp: Rank, form: ExpertForm
) -> tuple[LinearShare, LinearShare]:
    """gpt-oss has gate and up take turns, and its plain stacks are [experts, in, out]; other stacks have gate first."""
    is_gpt_oss, outputs, hidden = config.family == "gpt_oss", 2 * moe.intermediate_size, config.hidden_size
    is_transposed = is_gpt_oss and form == "stacked"

    def part(kind: str, shape: tuple[int, ...], rows: slice, columns: slice | None = None) -> TensorPart:
        transposed = is_transposed and len(shape) == 2
        stored = (moe.num_experts, *(shape[::-1] if transposed else shape))
        return TensorPart(f"{name}.{kind}", stored, rows, columns, item, transposed)

    def half_rows(half: int) -> slice:
        if is_gpt_oss:
            return slice(2 * inner.start + half, 2 * inner.stop, 2)
        return slice(half * moe.intermediate_size + inner.start, half * moe.intermediate_size + inner.stop)

    halves, whole = (half_rows(0), half_rows(1)), slice(0, hidden)
    gate_up = tuple(part("gate_up_proj", (outputs, hidden), rows) for rows in halves)
    biases = tuple(part("gate_up_proj_bias", (outputs,), rows) for rows in halves)
    down = part("down_proj", (hidden, moe.intermediate_size), whole, inner)
    down_bias = (part("down_proj_bias", (hidden,), whole),) if moe.has_bias and tp.rank == 0 else None
    return LinearShare(gate_up, biases if moe.has_bias else None), LinearShare((down,), down_bias)


def _by_rows(projections: tuple[tuple[str, int, slice], ...], num_columns: int, *, has_bias: bool) -> LinearShare:
    """The rank's rows of several projections of the same input: their name, number of rows, own rows."""
    weights = tuple(TensorPart(f"{name}.weight", (count, num_columns), rows) for name, count, rows in projections)
    biases = tuple(TensorPart(f"{name}.bias", (count,), rows) for name, count, rows in projections)
    return LinearShare(weights, biases if has_bias else None)


def _by_columns(name: str, num_rows: int, num_columns: int, columns: slice, tp: Rank, *, has_bias: bool) -> LinearShare:
    """The rank's columns of a projection whose results are summed over ranks; the sum takes the bias once."""
    weight = TensorPart(f"{name}.weight", (num_rows, num_columns), slice(0, num_rows), columns)
    return LinearShare((weight,), (_whole(f"{name}.bias", num_rows),) if has_bias and tp.rank == 0 else None)


def _vocabulary(name: str, config: ModelConfig, tp: Rank) -> TensorPart:
    share, size = tp.padded_share(config.vocab_size), config.vocab_size
    rows = slice(min(tp.rank * share, size), min((tp.rank + 1) * share, size))
    return TensorPart(name, (size, config.hidden_size), rows)


def _whole(name: str, size: int) -> TensorPart:
    return TensorPart(name, (size,), slice(0, size))


def _scale(run: slice, factor: int) -> slice:
    return slice(run.start * factor, run.stop * factor)
