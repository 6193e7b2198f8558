"""What a general model is, found out by building it without weights and running it once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedConfig, PreTrainedModel

from slipstream.workers.models.directory.json_keys import ModelError
from slipstream.workers.models.directory.kv_spec import KvSpec
from slipstream.workers.models.directory.model_config import DtypeName
from slipstream.workers.models.directory.model_spec import GeneralMode, GeneralSpec
from slipstream.workers.models.general.attention.attention_call import AttentionCalls, NoDecoderError, NotFlatError
from slipstream.workers.models.general.cached.cache_layout import (
    CacheLayout,
    NotCachedError,
    keeps_states,
    recorded_layout,
)
from slipstream.workers.models.general.call_recorder import CallRecorder, NoNumbersError
from slipstream.workers.models.general.execution.tensor_parallel_plan import divided_sizes, why_no_tp
from slipstream.workers.models.general.pretrained import (
    decoder_config,
    empty_model,
    max_positions,
    read_config,
    sentence,
    stated_positions,
    takes,
)
from slipstream.workers.models.general.registered import register_attention, set_attention, unregister_attention

NUM_TOKENS = 4  # of the pass that is recorded

DTYPES: dict[torch.dtype, DtypeName] = {
    torch.float32: "float32",
    torch.bfloat16: "bfloat16",
    torch.float16: "float16",
}


def describe(model_dir: Path, trust_remote_code: bool = False) -> GeneralSpec:
    """Raises ModelError, whose text says why the model cannot be served."""
    config = read_config(model_dir, trust_remote_code)
    dtype = config.dtype if isinstance(config.dtype, torch.dtype) else torch.float32
    if dtype not in DTYPES:
        raise ModelError(
            f"{model_dir / 'config.json'}: dtype: {dtype} is not supported, only {', '.join(DTYPES.values())}"
        )
    model = empty_model(config, dtype, "meta", trust_remote_code)
    if takes(model, "shared_kv_states"):
        raise ModelError(
            f"{type(model).__name__} cannot be served: it is a drafting head, which reads the keys and values of "
            f"another model (shared_kv_states)"
        )
    with suppress(ValueError):  # the one way of computing experts that looks at no numbers, where there are experts
        model.set_experts_implementation("batched_mm")
    try:
        try:
            calls = recorded_calls(model)
        except NoNumbersError:
            model = empty_model(config, dtype, "cpu", trust_remote_code)
            calls = recorded_calls(model)
        return spec_of(config, model, "flat", calls.kv_spec())
    except NoDecoderError as error:
        raise ModelError(f"{type(model).__name__} cannot be served: {error}") from error
    except NotFlatError as why_not_flat:
        try:
            layout = _recorded_layout(config, model, trust_remote_code)
        except NotCachedError as why_not_cached:
            raise ModelError(
                f"{type(model).__name__} cannot be served. As one flat batch: {why_not_flat}. With a cache: "
                f"{why_not_cached}"
            ) from why_not_cached
    return spec_of(config, model, "cached", layout.kv_spec)


def spec_of(config: PreTrainedConfig, model: PreTrainedModel, mode: GeneralMode, kv: KvSpec) -> GeneralSpec:
    output: Any = model.get_output_embeddings()  # type: ignore[no-untyped-call]
    vocab_size = decoder_config(config).vocab_size if output is None else output.weight.shape[0]
    return GeneralSpec(
        architecture=type(model).__name__,
        vocab_size=vocab_size,
        max_position_embeddings=max_positions(config),
        dtype=DTYPES[model.dtype],
        kv=kv,
        divided=divided_sizes(model, kv) if mode == "flat" else (),
        why_no_tp=why_no_tp(model)
        if mode == "flat"
        else f"{type(model).__name__} computes attention or states in its own way",
        mode=mode,
        notes=tuple(_notes(config, mode, kv, model.dtype.itemsize)),
    )


def _notes(config: PreTrainedConfig, mode: GeneralMode, kv: KvSpec, item_bytes: int) -> Iterator[str]:
    """Limits that the configuration does not lead one to expect."""
    stated, longest = stated_positions(config), max_positions(config)
    if longest < stated:
        yield (
            f"texts of up to {longest} tokens, not {stated}: longrope turns the keys of a longer text by other angles, "
            f"also those that are stored"
        )
    text = decoder_config(config).to_dict()
    stored = sum(layer.numbers for layer in kv.layers) * item_bytes
    rank, rotated = text.get("kv_lora_rank"), text.get("qk_rope_head_dim")
    if kv.has_indexers and "compress_rates" in text:
        yield f"what compressed entries are made of is stored in place of them, {stored} bytes for each token"
    if mode == "flat" and isinstance(rank, int) and isinstance(rotated, int):
        latent = len(kv.layers) * (rank + rotated) * item_bytes
        yield (
            f"keys and values are stored expanded, {stored} bytes for each token; their latent form "
            f"would have {latent} bytes"
        )


def _recorded_layout(config: PreTrainedConfig, model: PreTrainedModel, trust_remote_code: bool) -> CacheLayout:
    """Without numbers if the model is on the meta device and looks at none. Raises NotCachedError."""
    if model.device.type == "meta":
        try:
            return recorded_layout(model)
        except NotCachedError:
            raise
        except Exception:  # whatever the model's class raises where it finds no numbers
            model = empty_model(config, model.dtype, "cpu", trust_remote_code)
    try:
        return recorded_layout(model)
    except NotCachedError:
        raise
    except Exception as error:  # whatever the model's class raises
        raise NotCachedError(f"it does not run with one of transformers ({sentence(error)})") from error


@torch.inference_mode()
def recorded_calls(model: PreTrainedModel) -> AttentionCalls:
    """Runs the model once over a few tokens. Raises NotFlatError, and NoNumbersError on the meta device."""
    if keeps_states(model):
        raise NotFlatError("its layers keep states beside keys and values")
    if not takes(model, "position_ids"):
        raise NotFlatError("it takes no position_ids, so that tokens of several sequences cannot stand side by side")
    recorder = CallRecorder()
    name = register_attention(recorder.attention, recorder.mask)
    before = model.config._attn_implementation
    try:
        set_attention(model, name)
    except ValueError as error:
        unregister_attention(name)
        raise NotFlatError("it does not use the attention interface of transformers") from error
    try:
        tokens = torch.arange(NUM_TOKENS, device=model.device)[None]
        # With a mask, transformers does not look into the positions for where sequences begin: there are no numbers.
        mask = torch.ones_like(tokens) if model.device.type == "meta" else None
        model(input_ids=tokens, position_ids=tokens, attention_mask=mask, use_cache=False)
    except (ModelError, NoNumbersError):
        raise
    except Exception as error:  # whatever the model's class raises
        if model.device.type == "meta":
            raise NoNumbersError(str(error)) from error
        raise NotFlatError(f"it does not run: {sentence(error)}") from error
    finally:
        set_attention(model, before)
        unregister_attention(name)
    return recorder.calls
