"""What config.json says of rotary embeddings: their base, and how they are stretched to a longer context."""

from __future__ import annotations

from dataclasses import dataclass

from slipstream.workers.models.directory.json_keys import MAX_INTEGER, Keys
from slipstream.workers.models.directory.native_family import DEFAULTS, Family

DEFAULT_WINDOW_THETA = 10_000.0  # Gemma 3's, of layers with a window


@dataclass(frozen=True, slots=True)
class LinearScaling:
    """Positions divided by `factor`."""

    factor: float


@dataclass(frozen=True, slots=True)
class Llama3Scaling:
    """Llama 3.1's: low frequencies divided by `factor`, high ones kept, a smooth passage between."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_positions: int


@dataclass(frozen=True, slots=True)
class YarnScaling:
    """https://arxiv.org/abs/2309.00071. `attention_factor` multiplies cosines and sines."""

    factor: float
    original_max_positions: int
    attention_factor: float | None
    mscale: float | None
    mscale_all_dim: float | None
    beta_fast: float
    beta_slow: float
    truncate: bool


RopeScaling = LinearScaling | Llama3Scaling | YarnScaling


@dataclass(frozen=True, slots=True)
class Rope:
    """The base of rotary embeddings, and how they are stretched."""

    theta: float
    scaling: RopeScaling | None = None


def read_ropes(keys: Keys, family: Family, max_positions: int) -> tuple[Rope, Rope | None]:
    """The rotary embeddings; and those of layers with a window, None where they are the same. transformers 5 writes
    `rope_parameters`, older files have `rope_theta` and `rope_scaling`. Raises ModelError."""
    if family == "gemma3":
        return _ropes_by_kind(keys, max_positions)
    if family == "gpt_oss" and all(keys.section(key) is None for key in ("rope_scaling", "rope_parameters")):
        raise keys.not_native("rope_scaling", "is missing")
    return _read_rope(keys, max_positions, DEFAULTS[family].rope_theta), None


def stretched_positions(keys: Keys, rope: Rope, max_positions: int) -> int:
    """Tokens of context, with what yarn adds to `max_positions`. Raises ModelError."""
    if not isinstance(rope.scaling, YarnScaling):
        return max_positions
    stretched = rope.scaling.factor * rope.scaling.original_max_positions
    if stretched > MAX_INTEGER:
        raise keys.error("rope_scaling", f"factor {rope.scaling.factor} makes more than {MAX_INTEGER} positions")
    return max(max_positions, int(stretched))


def _ropes_by_kind(keys: Keys, max_positions: int) -> tuple[Rope, Rope]:
    """Gemma 3's. transformers 5 writes `rope_parameters` by kind of layer; older files have `rope_local_base_freq` for
    the base of layers with a window."""
    default_theta = DEFAULTS["gemma3"].rope_theta
    by_kind = keys.section("rope_parameters")
    if by_kind is None:
        window_theta = keys.number("rope_local_base_freq", DEFAULT_WINDOW_THETA)
        return _read_rope(keys, max_positions, default_theta), Rope(window_theta)
    if keys.get("rope_scaling"):
        raise keys.error("rope_scaling", "is not supported beside rope_parameters")
    for key, value in by_kind.values.items():
        if not isinstance(value, dict):
            raise by_kind.not_native(key, "only parameters of full_attention and sliding_attention are supported")

    def of_kind(kind: str, theta: float) -> Rope:
        rope = by_kind.section(kind)
        if rope is None:
            return Rope(theta)
        return Rope(rope.number("rope_theta", theta), _rope_scaling(keys, rope, max_positions))

    return (
        of_kind("full_attention", keys.number("rope_theta", default_theta)),
        of_kind("sliding_attention", keys.number("rope_local_base_freq", DEFAULT_WINDOW_THETA)),
    )


def _read_rope(keys: Keys, max_positions: int, default_theta: float) -> Rope:
    scaling = keys.section("rope_scaling")
    rope = scaling if scaling is not None and scaling.values else keys.section("rope_parameters")
    theta = keys.number("rope_theta", default_theta)
    _refuse_partial(keys)
    if rope is None:
        return Rope(theta)
    for key, value in rope.values.items():
        if isinstance(value, dict):
            raise rope.error(key, "parameters of single kinds of layers are not supported")
    for key in ("mrope_section", "llama_4_scaling_beta"):
        if rope.get(key) is not None:
            raise rope.error(key, f"{rope.get(key)!r} is not supported")
    _refuse_partial(rope)
    return Rope(rope.number("rope_theta", theta), _rope_scaling(keys, rope, max_positions))


def _refuse_partial(keys: Keys) -> None:
    if keys.number("partial_rotary_factor", 1.0) != 1:
        raise keys.not_native("partial_rotary_factor", "only 1 is supported")


def _rope_scaling(keys: Keys, rope: Keys, max_positions: int) -> RopeScaling | None:
    rope_type = rope.get("rope_type", rope.get("type", "default"))

    def original_max_positions() -> int:
        return keys.integer(
            "original_max_position_embeddings", rope.integer("original_max_position_embeddings", max_positions)
        )

    match rope_type:
        case "default":
            return None
        case "linear":
            return LinearScaling(rope.number("factor"))
        case "llama3":
            return Llama3Scaling(
                factor=rope.number("factor"),
                low_freq_factor=rope.number("low_freq_factor"),
                high_freq_factor=rope.number("high_freq_factor"),
                original_max_positions=original_max_positions(),
            )
        case "yarn":
            return YarnScaling(
                factor=rope.number("factor"),
                original_max_positions=original_max_positions(),
                attention_factor=rope.optional_number("attention_factor"),
                mscale=rope.optional_number("mscale"),
                mscale_all_dim=rope.optional_number("mscale_all_dim"),
                beta_fast=rope.number("beta_fast", 32.0),
                beta_slow=rope.number("beta_slow", 1.0),
                truncate=rope.flag("truncate", True),
            )
        case _:
            raise rope.not_native("rope_type", f"{rope_type!r} is not supported, only default, linear, llama3 and yarn")
