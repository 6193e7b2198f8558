"""What the engine, and the cluster around it, ask of a model, whichever code computes it. Free of torch."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from typing import Literal, Protocol

from slipstream.workers.models.directory.json_keys import ModelError
from slipstream.workers.models.directory.kv_spec import KvSpec
from slipstream.workers.models.directory.model_config import DtypeName

ModelImpl = Literal["auto", "native", "transformers"]
GeneralMode = Literal["flat", "cached"]


class LanguageModelSpec(Protocol):
    """`directory.model_config.ModelConfig` is that of a native family, `GeneralSpec` that of a model that transformers
    computes."""

    @property
    def vocab_size(self) -> int: ...

    @property
    def max_position_embeddings(self) -> int: ...  # tokens of context

    @property
    def dtype(self) -> DtypeName: ...

    @property
    def kv(self) -> KvSpec: ...

    @property
    def divided(self) -> tuple[tuple[str, int], ...]:
        """The sizes that tensor parallelism deals out, by the names that config.json has for them: a degree must
        divide each."""


@dataclass(frozen=True, slots=True)
class GeneralSpec:
    """`mode` is how a step is computed: `flat`, all sequences as one batch with our attention, or `cached`, with
    transformers' `Cache` over our pages and the model's own attention. `why_no_tp` says why the model cannot be dealt
    out to several ranks; None: it can. `runs_code`: it is computed by code in its directory, which its entry allows.
    `notes` are sentences about limits that its configuration does not lead one to expect.
    `continues_singly`: behind a state, tokens are computed one by one; this shows when the weights are loaded."""

    architecture: str
    vocab_size: int
    max_position_embeddings: int
    dtype: DtypeName
    kv: KvSpec
    divided: tuple[tuple[str, int], ...] = ()
    why_no_tp: str | None = None
    mode: GeneralMode = "flat"
    runs_code: bool = False
    notes: tuple[str, ...] = ()
    continues_singly: bool = False


def check_tp(model: LanguageModelSpec, size: int) -> None:
    """Raises ModelError if the model cannot be dealt out to so many ranks."""
    if size == 1:
        return
    if isinstance(model, GeneralSpec) and model.why_no_tp is not None:
        raise ModelError(f"tensor parallel degree {size}: {model.why_no_tp}")
    for name, count in model.divided:
        if count % size:
            raise ModelError(f"tensor parallel degree {size} does not divide {name} = {count}")
    if isinstance(model, GeneralSpec) and find_spec("accelerate") is None:
        raise ModelError(
            f"tensor parallel degree {size}: for a model that transformers computes it needs the package accelerate: "
            "pip install 'slipstream[parallel]'"
        )
