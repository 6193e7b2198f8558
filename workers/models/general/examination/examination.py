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
from transformers.activations import ACT2FN
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from slipstream.workers.models.description.model_description import CodeNeededError, ModelDescription
from slipstream.workers.models.directory.json_keys import Keys, ModelError, read_json
from slipstream.workers.models.directory.model_config import CONFIG_FILE
from slipstream.workers.models.directory.native_family import keys_of_other_families, refuse_encoder_decoder
from slipstream.workers.models.general.describe import describe
from slipstream.workers.models.general.pretrained import empty_model, read_config, transformers_version
from slipstream.workers.models.general.quantized import set_dequantization

ACTIVATION_KEYS = ("hidden_act", "hidden_activation", "activation_function", "activation")
ROPE_KEYS = ("rope_parameters", "rope_scaling")


def examined(model_dir: Path, runs_code: bool) -> ModelDescription:
    """Raises ModelError; CodeNeededError if only code in the directory can compute the model, and `runs_code` is
    false."""
    keys = Keys(model_dir / CONFIG_FILE, read_json(model_dir / CONFIG_FILE))
    refuse_encoder_decoder(keys, _has_encoder_by_default(str(keys.get("model_type"))))
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
    _refuse_contradiction(keys, trust)
    config = read_config(model_dir, trust)
    set_dequantization(config, model_dir)
    text = keys.section("text_config") or keys
    try:
        model = empty_model(config, torch.float32, "meta", trust)
    except ModelError as error:
        for part in (keys, text):
            _refuse_activation(part)
            _refuse_rope_type(part)
        raise ModelError(f"{model_dir / CONFIG_FILE}: {error}{_divisors(error, text)}") from error
    _refuse_keys_that_are_not_read(text, model)
    try:
        spec = replace(describe(model_dir, trust), runs_code=trust)
    except ModelError as error:
        raise ModelError(f"{error}{_divisors(error, text)}") from error
    tied: Any = getattr(model, "all_tied_weights_keys", None) or {}
    return ModelDescription(
        spec=spec,
        tensors={name: tuple(tensor.shape) for name, tensor in model.state_dict().items()},
        tied=tuple(sorted(tied)),
        num_parameters=sum(one.numel() for one in model.parameters()),
    )


def _refuse_activation(keys: Keys) -> None:
    """Where a model could not be built. Raises ModelError."""
    for key in ACTIVATION_KEYS:
        value = keys.get(key)
        if value is not None and (not isinstance(value, str) or value not in ACT2FN):
            raise keys.error(key, f"{value!r} is not supported: transformers has no such activation")


def _has_encoder_by_default(model_type: str) -> bool:
    return model_type in CONFIG_MAPPING and getattr(CONFIG_MAPPING[model_type], "is_encoder_decoder", False) is True


def _refuse_rope_type(keys: Keys) -> None:
    """Where a model could not be built. Raises ModelError."""
    sections = list(_rope_sections(keys))
    of_layers = [inner for one in sections for key in one.values if (inner := _section(one, key))]
    for section in (*sections, *of_layers):
        for key in ("rope_type", "type"):
            value = section.get(key)
            if value not in (None, "default", *ROPE_INIT_FUNCTIONS):
                raise section.error(key, f"{value!r} is not supported: transformers has no such rope type")


def _rope_sections(keys: Keys) -> Iterator[Keys]:
    for name in ROPE_KEYS:
        if section := _section(keys, name):
            yield section


def _section(keys: Keys, key: str) -> Keys | None:
    """None where it is missing or something else."""
    return keys.section(key) if isinstance(keys.get(key), dict) else None


def _divisors(error: ModelError, keys: Keys) -> str:
    """What to add to an error about a division by zero: the keys that are 0, one of which is the divisor."""
    if ZeroDivisionError.__name__ not in str(error):
        return ""
    values = ((key, value) for key, value in keys.values.items() if not key.endswith(("_id", "dropout")))
    zeros = sorted(key for key, value in values if type(value) is int and value == 0)
    return f"; {keys.path.name} has 0 for {', '.join(keys.prefix + key for key in zeros)}" if zeros else ""


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


def _refuse_contradiction(keys: Keys, runs_code: bool) -> None:
    """vLLM goes by `architectures`, transformers by `model_type`: a class of transformers of another type is refused,
    and a name that transformers does not know, unless the directory has the code. Without any name, `model_type` alone
    decides. Raises ModelError."""
    model_type, names = str(keys.get("model_type")), keys.get("architectures", [])
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise keys.error("architectures", f"must be a list of names, got {names!r}")
    for name in names:
        if not runs_code and not hasattr(transformers, name):
            raise keys.error(
                "architectures", f"{name!r} is not supported: transformers {transformers_version()} has no such class"
            )
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
    for at in (keys, *_rope_sections(keys)):
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
