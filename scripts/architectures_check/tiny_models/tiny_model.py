"""A tiny random model of any causal type, saved with a tokenizer as a checkpoint."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
import transformers
from transformers import PreTrainedConfig, PreTrainedModel

from scripts.architectures_check.reference import Reference
from scripts.architectures_check.strength import Strength, strength

from .tiny_config import model_types, tiny_configs
from .tiny_tokenizer import save_tokenizer
from .tiny_weights import FIRST_IF_TIED, FIRST_TRIAL, TRIALS, fill


@dataclass(frozen=True, slots=True)
class TinyModel:
    model_dir: Path
    num_parameters: int
    reference: Reference
    strength: Strength
    trial: int  # which of TRIALS its weights are


def build(model_type: str, model_dir: Path) -> TinyModel:
    """Draws weights until the model is a strong test, or else takes the strongest that it has tried. Raises whatever
    the model's class raises where it cannot be made or does not run."""
    config, stored = tiny_configs(model_type)
    stored.architectures = [model_types()[model_type]]
    torch.manual_seed(0)
    model = getattr(transformers, model_types()[model_type])(config).float().eval()
    is_tied = getattr(config.get_text_config(), "tie_word_embeddings", False)
    first = FIRST_TRIAL.get(model_type, FIRST_IF_TIED if is_tied else 0)
    best: tuple[tuple[int, int, int], int] | None = None
    for trial in sorted(range(len(TRIALS)), key=lambda at: at != first):
        built = _saved(model, stored, trial, model_dir)
        if built.strength.is_strong:
            return built
        if best is None or built.strength.rank > best[0]:
            best = built.strength.rank, trial
    assert best is not None
    return _saved(model, stored, best[1], model_dir)


def _saved(model: PreTrainedModel, stored: PreTrainedConfig, trial: int, model_dir: Path) -> TinyModel:
    fill(model, TRIALS[trial])
    model.save_pretrained(model_dir)
    if stored is not model.config:
        stored.save_pretrained(model_dir)
    save_tokenizer(model_dir)
    reference = Reference.load(model_dir)
    num_parameters = sum(parameter.numel() for parameter in model.parameters())
    return TinyModel(model_dir, num_parameters, reference, strength(reference), trial)
