"""All that is found out about a general model without its weights, and why it is refused before it is built."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from slipstream.workers.models.description.model_description import CodeNeededError, ModelDescription
from slipstream.workers.models.directory.json_keys import Keys, read_json
from slipstream.workers.models.directory.model_config import CONFIG_FILE
from slipstream.workers.models.directory.native_family import keys_of_other_families
from slipstream.workers.models.general.describe import describe
from slipstream.workers.models.general.pretrained import empty_model, read_config, transformers_version
from slipstream.workers.models.general.quantized import set_dequantization

ROPE_KEYS = ("rope_parameters", "rope_scaling")


def examined(model_dir: Path, runs_code: bool) -> ModelDescription:
    """Raises ModelError; CodeNeededError if only code in the directory can compute the model, and `runs_code` is
    false."""
    keys = Keys(model_dir / CONFIG_FILE, read_json(model_dir / CONFIG_FILE))
    _refuse_encoder_decoder(keys)
    trust = needs_code(keys)
    if trust and not runs_code:
        raise CodeNeededError(
            str(
                keys.error(
                    "auto_map",
                    f"{keys.get('model_type')!r} is computed by code in the model's directory, which runs only with"
                    " trust_remote_code: true in the model's entry",
                )
            )
        )
    _refuse_contradiction(keys)
    config = read_config(model_dir, trust)
    set_dequantization(config, model_dir)
    model = empty_model(config, torch.float32, "meta", trust)
    _refuse_keys_that_are_not_read(keys.section("text_config") or keys, model)
    spec = replace(describe(model_dir, trust), runs_code=trust)
    tied: Any = getattr(model, "all_tied_weights_keys", None) or {}
    return ModelDescription(
        spec=spec,
        tensors={name: tuple(tensor.shape) for name, tensor in model.state_dict().items()},
        tied=tuple(sorted(tied)),
        num_parameters=sum(one.numel() for one in model.parameters()),
    )


def _refuse_encoder_decoder(keys: Keys) -> None:
    """Some of these have a class for their decoder alone, which would be another model. Raises ModelError."""
    model_type, key = keys.get("model_type"), "is_encoder_decoder"
    by_default = model_type in CONFIG_MAPPING and getattr(CONFIG_MAPPING[model_type], key, False) is True
    if keys.get(key, by_default) is True:
        names = keys.get("architectures")
        name = names[0] if isinstance(names, list) and names else model_type
        raise keys.error(
            key, f"true: {name} is an encoder-decoder model, which is not supported: only decoders are served"
        )


def needs_code(keys: Keys) -> bool:
    """Whether the directory has code of its own, and transformers none for this type. Raises ModelError if neither
    has."""
    model_type = keys.get("model_type")
    auto_map = keys.get("auto_map")
    own = auto_map if isinstance(auto_map, dict) else {}
    if model_type in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        return False
    if "AutoModelForCausalLM" in own and (model_type in CONFIG_MAPPING or "AutoConfig" in own):
        return True
    if model_type is None:
        raise keys.error("model_type", "is missing")
    what = "causal language model" if model_type in CONFIG_MAPPING else "model"
    raise keys.error(
        "model_type", f"{model_type!r} is not supported: transformers {transformers_version()} has no such {what}"
    )


def _refuse_contradiction(keys: Keys) -> None:
    """vLLM goes by `architectures`, transformers by `model_type`: a class of transformers of another type is refused.
    Raises ModelError."""
    model_type, names = str(keys.get("model_type")), keys.get("architectures", [])
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise keys.error("architectures", f"must be a list of names, got {names!r}")
    for name in names:
        known = getattr(getattr(transformers, name, None), "config_class", None)
        if known is None or known.model_type == model_type or known.model_type.startswith(f"{model_type}_"):
            continue
        if name != MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(model_type):  # some types have the class of another one
            raise keys.error("model_type", f"{model_type!r} contradicts architectures: {name}")


def _refuse_keys_that_are_not_read(keys: Keys, model: PreTrainedModel) -> None:
    """A key that changes the computation in other families, but that this class does not look at, stands in files that
    were made for other code: the model would compute something else than was trained. Raises ModelError."""
    for key, value, at in (*((key, value, keys) for key, value in keys_of_other_families(keys)), *_partial(keys)):
        if key not in _code_of(model):
            name = type(model).__name__
            raise at.error(key, f"{value!r} is not supported: {name} of transformers does not read it")


def _partial(keys: Keys) -> Iterator[tuple[str, object, Keys]]:
    key = "partial_rotary_factor"
    for at in (
        keys,
        *(section for name in ROPE_KEYS if isinstance(keys.get(name), dict) and (section := keys.section(name))),
    ):
        if at.get(key, 1) != 1:
            yield key, at.get(key), at


def _code_of(model: PreTrainedModel) -> str:
    """The source of the modules in which the model and its configuration are defined."""
    modules = {
        type(model).__module__,
        *(type(one).__module__ for one in model.modules()),
        type(model.config).__module__,
    }
    own = {name for name in modules if not name.startswith("torch.")}
    return "\n".join(inspect.getsource(sys.modules[name]) for name in sorted(own))
