"""A tiny random model of any causal type, saved with a tokenizer as a checkpoint."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
import transformers
from transformers import PreTrainedModel

from .reference import Reference
from .strength import Strength, strength
from .tiny_config import model_types, tiny_config
from .tiny_tokenizer import save_tokenizer
from .tiny_weights import TRIALS, Gains, fill


@dataclass(frozen=True, slots=True)
class TinyModel:
    model_dir: Path
    num_parameters: int
    reference: Reference
    strength: Strength


def build(model_type: str, model_dir: Path) -> TinyModel:
    """Draws weights until the model is a strong test, or else takes the strongest that it has tried. Raises whatever
    the model's class raises where it cannot be made or does not run."""
    config = tiny_config(model_type)
    torch.manual_seed(0)
    model = getattr(transformers, model_types()[model_type])(config).float().eval()
    best: tuple[tuple[int, int, int], Gains] | None = None
    for gains in TRIALS:
        built = _saved(model, gains, model_dir)
        if built.strength.is_strong:
            return built
        if best is None or built.strength.rank > best[0]:
            best = built.strength.rank, gains
    assert best is not None
    return _saved(model, best[1], model_dir)


def _saved(model: PreTrainedModel, gains: Gains, model_dir: Path) -> TinyModel:
    fill(model, gains)
    model.save_pretrained(model_dir)
    save_tokenizer(model_dir)
    reference = Reference.load(model_dir)
    return TinyModel(model_dir, sum(p.numel() for p in model.parameters()), reference, strength(reference))
