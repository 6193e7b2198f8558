"""Quantised checkpoints of general models. Where the library can widen the weights while it loads them, it is asked
to: its own products in few bits are for GPUs."""

from __future__ import annotations

import inspect
from pathlib import Path

from transformers import PreTrainedConfig
from transformers.quantizers.auto import AUTO_QUANTIZATION_CONFIG_MAPPING, AutoHfQuantizer

from slipstream.router.model_files.json_file import shortened
from slipstream.workers.models.directory.json_keys import ModelError
from slipstream.workers.models.directory.model_config import CONFIG_FILE


def set_dequantization(config: PreTrainedConfig, model_dir: Path) -> None:
    """Lets transformers widen the weights that `config` says are quantised, if it can. Raises ModelError, with the
    library's reason, if it cannot read them on this machine."""
    stored = getattr(config, "quantization_config", None)
    if stored is None:
        return
    method = stored.get("quant_method") if isinstance(stored, dict) else None
    if not stays_quantized(config):
        stored["dequantize"] = True
    try:
        AutoHfQuantizer.from_config(dict(stored), pre_quantized=True).validate_environment(
            device_map={"": "cpu"}, weights_only=True
        )
    except Exception as error:  # each form of quantisation has its own, most of them for a package that is missing
        reason = " ".join(str(error).split())
        raise ModelError(
            f"{model_dir / CONFIG_FILE}: quantization_config.quant_method: {method!r} cannot be read here:"
            f" {type(error).__name__}: {shortened(reason)}"
        ) from error


def stays_quantized(config: PreTrainedConfig) -> bool:
    """Whether the weights are quantised in a form that transformers does not widen while it loads them."""
    stored = getattr(config, "quantization_config", None)
    if not isinstance(stored, dict):
        return stored is not None
    form = AUTO_QUANTIZATION_CONFIG_MAPPING.get(str(stored.get("quant_method")))
    return form is None or "dequantize" not in inspect.signature(form).parameters
