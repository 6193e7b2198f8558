"""What config.json says of each layer's attention window."""

from __future__ import annotations

from slipstream.workers.models.directory.json_keys import Keys
from slipstream.workers.models.directory.native_family import DEFAULTS, Family


def read_layer_windows(keys: Keys, family: Family, num_layers: int) -> tuple[int | None, ...]:
    """The keys that a query of each layer sees, its own included; None: all. Raises ModelError."""
    layer_types = keys.get("layer_types", [])
    if not isinstance(layer_types, list):
        raise keys.error("layer_types", f"must be a list of names, got {layer_types!r}")
    default = DEFAULTS[family].window
    match family:
        case "llama" | "gemma":
            if any(kind != "full_attention" for kind in layer_types):
                raise keys.error("layer_types", f"only full_attention is supported for {family}")
            return (None,) * num_layers
        case "mistral":
            # If this key is absent it means 4096, if it is null it means none. For all other keys, the two are the
            # same.
            absent = "sliding_window" not in keys.values
            window = default if absent else keys.get("sliding_window")
            return (window if window is None else keys.integer("sliding_window", window),) * num_layers
        case "qwen3_moe":
            if any(kind != "full_attention" for kind in layer_types):
                raise keys.not_native("layer_types", "only full_attention is supported for Qwen3-MoE")
            slides = keys.flag("use_sliding_window", False)
            return (keys.integer("sliding_window", default) if slides else None,) * num_layers
        case "gpt_oss":
            return _sliding_windows(keys, family, num_layers)
        case "qwen2" | "qwen3":
            has_no_window = "sliding_window" in keys.values and keys.get("sliding_window") is None
            if has_no_window or not keys.flag("use_sliding_window", False):
                if "sliding_attention" in layer_types:
                    raise keys.error("layer_types", "sliding_attention needs use_sliding_window and sliding_window")
                return (None,) * num_layers
            return _sliding_windows(keys, family, num_layers)
        case "gemma2" | "gemma3":
            if "sliding_window" in keys.values and keys.get("sliding_window") is None:
                raise keys.error("sliding_window", f"null is not supported for {family}")
            return _sliding_windows(keys, family, num_layers)


def _sliding_windows(keys: Keys, family: Family, num_layers: int) -> tuple[int | None, ...]:
    window = keys.integer("sliding_window", DEFAULTS[family].window)
    return tuple(window if slides else None for slides in _sliding_layers(keys, family, num_layers))


def _sliding_layers(keys: Keys, family: Family, num_layers: int) -> list[bool]:
    """Which layers have the window."""
    layer_types, every = keys.get("layer_types"), DEFAULTS[family].full_every
    if layer_types is None and every is not None:
        if family == "gemma3":
            every = keys.integer("sliding_window_pattern", every)
        return [(layer + 1) % every != 0 for layer in range(num_layers)]
    if layer_types is None:
        first = keys.get("max_window_layers", 28)
        if type(first) is not int or first < 0:
            raise keys.error("max_window_layers", f"must be an integer from 0, got {first!r}")
        return [layer >= first for layer in range(num_layers)]
    if not isinstance(layer_types, list) or len(layer_types) != num_layers:
        raise keys.error("layer_types", f"must be a list of {num_layers} names, got {layer_types!r}")
    for name in layer_types:
        if name not in ("full_attention", "sliding_attention"):
            raise keys.error("layer_types", f"{name!r} is not supported, only full_attention and sliding_attention")
    return [name == "sliding_attention" for name in layer_types]
