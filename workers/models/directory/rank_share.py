"""Which rows and columns of which stored tensors one rank holds, under the names of Hugging Face checkpoints. Free of
torch."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from slipstream.workers.models.directory.json_keys import ModelError
from slipstream.workers.models.directory.model_config import ModelConfig

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
class VocabularyTensors:
    """The tensors that the embedding and the output layer are read from. They are the same one where they are tied."""

    embedding: str = EMBEDDING
    lm_head: str = LM_HEAD

    @classmethod
    def of(cls, config: ModelConfig, stored: Collection[str] | None = None) -> VocabularyTensors:
        """Those of a checkpoint that holds the tensors `stored`; None: those that config.json speaks of.

        A head of its own counts, even if config.json ties it; and if only one of two tied tensors is stored, it is
        both. This is how transformers 5 reads such checkpoints (`PreTrainedModel.tie_weights`)."""
        if not config.tie_word_embeddings:
            return cls()
        if stored is None or LM_HEAD not in stored:
            return cls(EMBEDDING, EMBEDDING)
        return cls() if EMBEDDING in stored else cls(LM_HEAD, LM_HEAD)


@dataclass(frozen=True, slots=True)
class TensorPart:
    """Some rows of a stored tensor, [rows] or [rows, some columns]."""

    name: str
    stored_shape: tuple[int, ...]
    rows: slice
    columns: slice | None = None  # of a matrix; None: all

    @property
    def num_rows(self) -> int:
        num_rows: int = self.rows.stop - self.rows.start
        return num_rows

    @property
    def num_columns(self) -> int:
        if self.columns is None:
            return self.stored_shape[1]
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
class LayerShare:
    attention_norm: TensorPart
    qkv: LinearShare  # query heads, key heads, value heads
    query_norm: TensorPart | None  # [head_dim], the same for all heads
    key_norm: TensorPart | None
    output: LinearShare
    mlp_norm: TensorPart
    gate_up: LinearShare  # gate, up
    down: LinearShare
    attention_post_norm: TensorPart | None = None  # of what attention and the feed-forward block add
    mlp_post_norm: TensorPart | None = None


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
    def of(config: ModelConfig, tp: Rank, vocabulary: VocabularyTensors | None = None) -> RankShare:
        """`vocabulary` None: what config.json speaks of. Raises ModelError if heads or feed-forward block cannot be
        dealt out to the group."""
        vocabulary = VocabularyTensors.of(config) if vocabulary is None else vocabulary
        return RankShare(
            vocab_share=tp.padded_share(config.vocab_size),
            embedding=_vocabulary(vocabulary.embedding, config, tp),
            layers=tuple(_layer(f"model.layers.{i}", config, tp) for i in range(config.num_layers)),
            final_norm=_whole("model.norm.weight", config.hidden_size),
            lm_head=_vocabulary(vocabulary.lm_head, config, tp),
        )


def _layer(name: str, config: ModelConfig, tp: Rank) -> LayerShare:
    c, attention, mlp = config, f"{name}.self_attn", f"{name}.mlp"
    q_rows = _scale(tp.shard(c.num_heads, "num_attention_heads"), c.head_dim)
    kv_rows = _scale(tp.shard(c.num_kv_heads, "num_key_value_heads"), c.head_dim)
    inner = tp.shard(c.intermediate_size, "intermediate_size")
    q_size, kv_size = c.num_heads * c.head_dim, c.num_kv_heads * c.head_dim
    qkv = (
        (f"{attention}.q_proj", q_size, q_rows),
        (f"{attention}.k_proj", kv_size, kv_rows),
        (f"{attention}.v_proj", kv_size, kv_rows),
    )
    mlp_norm = "pre_feedforward" if c.post_norms else "post_attention"
    gate_up = tuple((f"{mlp}.{gate}_proj", c.intermediate_size, inner) for gate in ("gate", "up"))
    return LayerShare(
        attention_norm=_whole(f"{name}.input_layernorm.weight", c.hidden_size),
        qkv=_by_rows(qkv, c.hidden_size, has_bias=c.qkv_bias),
        query_norm=_whole(f"{attention}.q_norm.weight", c.head_dim) if c.qk_norm else None,
        key_norm=_whole(f"{attention}.k_norm.weight", c.head_dim) if c.qk_norm else None,
        output=_by_columns(f"{attention}.o_proj", c.hidden_size, q_size, q_rows, tp, has_bias=c.output_bias),
        mlp_norm=_whole(f"{name}.{mlp_norm}_layernorm.weight", c.hidden_size),
        gate_up=_by_rows(gate_up, c.hidden_size, has_bias=c.mlp_bias),
        down=_by_columns(f"{mlp}.down_proj", c.hidden_size, c.intermediate_size, inner, tp, has_bias=c.mlp_bias),
        attention_post_norm=_whole(f"{name}.post_attention_layernorm.weight", c.hidden_size) if c.post_norms else None,
        mlp_post_norm=_whole(f"{name}.post_feedforward_layernorm.weight", c.hidden_size) if c.post_norms else None,
    )


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
