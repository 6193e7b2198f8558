"""What transformers would find missing or wrong in a checkpoint, without reading any weights: the shapes of all tensors
go the way that the weights would, renamed and converted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import convert_and_load_state_dict_in_model
from transformers.modeling_utils import LoadStateDictConfig

from slipstream.workers.models.directory.json_keys import Keys, read_json
from slipstream.workers.models.directory.model_config import CONFIG_FILE
from slipstream.workers.models.directory.weight_files import WeightFiles, pickled_file_names
from slipstream.workers.models.general.examination.examination import needs_code
from slipstream.workers.models.general.pretrained import (
    empty_model,
    load_plain,
    mismatched_sentence,
    missing_sentence,
    read_config,
)


def weights_problem(model_dir: Path, runs_code: bool) -> str | None:
    """One sentence; None if transformers can load the weights. Quantised ones are not looked at: what they are
    converted to follows from their numbers. Raises ModelError."""
    trust = runs_code and needs_code(Keys(model_dir / CONFIG_FILE, read_json(model_dir / CONFIG_FILE)))
    config = read_config(model_dir, trust)
    if getattr(config, "quantization_config", None) is not None:
        return None
    model = empty_model(config, torch.float32, "meta", trust)
    found = _loaded(model, _stored(model_dir))
    if found.conversion_errors:
        name, error = min(found.conversion_errors.items())
        why = (error.splitlines() or [""])[-2:][0]  # the last line is about the conversion
        return f"{model_dir}: the weights for {name} cannot be made of those that are there: {why}"
    if found.mismatched_keys:
        return mismatched_sentence(model_dir, found.mismatched_keys)
    return missing_sentence(model_dir, found.missing_keys) if found.missing_keys else None


def _stored(model_dir: Path) -> dict[str, Tensor]:
    """The tensors of the checkpoint, without numbers."""
    pickled = pickled_file_names(model_dir)
    tensors: dict[str, Tensor] = {}
    for file in pickled:
        tensors |= load_plain(model_dir / file)
    if not pickled:
        for name, tensor in WeightFiles.read(model_dir).tensors.items():
            tensors[name] = torch.empty(tensor.shape, device="meta")
    return tensors


def _loaded(model: PreTrainedModel, tensors: dict[str, Tensor]) -> Any:
    """The report of transformers (`LoadStateDictInfo`)."""
    conversions: list[Any] = list(get_model_conversion_mapping(model))
    options = LoadStateDictConfig(device_map={"": "meta"}, dtype=torch.float32, weight_mapping=conversions)
    found, _ = convert_and_load_state_dict_in_model(model, tensors, options)
    model.mark_tied_weights_as_initialized(found)  # type: ignore[no-untyped-call]
    model.tie_weights(missing_keys=found.missing_keys, recompute_mapping=False)
    model._adjust_missing_and_unexpected_keys(found)
    return found
