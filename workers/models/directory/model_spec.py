"""What the engine, and the cluster around it, ask of a model, whichever code computes it. Free of torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from slipstream.workers.models.directory.json_keys import ModelError
from slipstream.workers.models.directory.kv_spec import KvSpec
from slipstream.workers.models.directory.model_config import DtypeName, ModelConfig

ModelImpl = Literal["auto", "native", "transformers"]


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """`divided` are the sizes that tensor parallelism deals out, by the names that config.json has for them: a degree
    must divide each. `why_no_tp` says why there is none at all. `native` is the configuration if a native family
    computes the model; None: transformers does."""

    architecture: str
    vocab_size: int
    max_position_embeddings: int  # tokens of context
    dtype: DtypeName
    kv: KvSpec
    divided: tuple[tuple[str, int], ...] = ()
    why_no_tp: str | None = None
    native: ModelConfig | None = None

    @staticmethod
    def of_native(config: ModelConfig) -> ModelSpec:
        return ModelSpec(
            architecture=config.family,
            vocab_size=config.vocab_size,
            max_position_embeddings=config.max_position_embeddings,
            dtype=config.dtype,
            kv=KvSpec.uniform(config.num_kv_heads, config.head_dim, config.layer_windows),
            divided=(
                ("num_attention_heads", config.num_heads),
                ("num_key_value_heads", config.num_kv_heads),
                ("intermediate_size", config.intermediate_size),
            ),
            native=config,
        )

    def check_tp(self, size: int) -> None:
        """Raises ModelError if the model cannot be dealt out to so many ranks."""
        if size == 1:
            return
        if self.why_no_tp is not None:
            raise ModelError(f"tensor parallel degree {size}: {self.why_no_tp}")
        for name, count in self.divided:
            if count % size:
                raise ModelError(f"tensor parallel degree {size} does not divide {name} = {count}")
