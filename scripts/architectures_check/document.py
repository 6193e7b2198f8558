"""docs/architectures.md, made from the rows."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import transformers

from .row import Row
from .tiny_models.tiny_config import is_decoder_of_more, is_encoder
from .tiny_models.tiny_overrides import NOT_BUILT
from .variants import VARIANTS

KEPT = "## Quantised checkpoints"  # from this heading on, the page is written by hand
NAMES = {name: name.replace("_", " ").replace("tp2", "TP 2").replace("tp", "TP") for name in VARIANTS}
NAMES["tp2"] = "TP 2"
LIBRARY = "transformers"

INTRO = """# Architectures

Each causal architecture of {library} {version}, as a tiny random model (2 to 6 layers, every kind of layer that it has,
float32), served by the engine and compared with what {library} itself generates for each prompt alone, with eager
attention and its own cache. `scripts/architectures` makes this page; `scripts/architectures --only gemma2` checks one.

{num_equal} of {num_all} give the same tokens in every variant that they are served in, {num_all_variants} of them in
all {num_variants} variants. Beside these, {num_decoders} decoders of encoder-decoder models do, served alone, and
{num_encoders} encoders that `is_decoder` makes causal. {num_refused} are refused, {num_differing} are served and
not equal, and of {num_unbuilt} no tiny model can be made. A checkpoint of a whole encoder-decoder model
(`is_encoder_decoder: true`) is refused.

The variants:

{variants}

Tokens are equal if each one is the reference's, or if its score ties with that within 1e-5 and the reference continues
from it in the same way. The weights are drawn so that the test is strong: the continuation changes if a token far back
is changed or swapped with another one, and is not the same everywhere. Where no weights do that, the row says "weak".
Where {library} generates something else with its cache than without, the reference is without.
"""

SERVED = """## Served

Paths: `native` is a family of this project. `flat` is the library's class over our pages, all sequences of a step in
one batch. `cached` is the library's class, sequence by sequence, with a cache that reads and writes our pages.
"""
DECODERS = """## Decoders of encoder-decoder models, served alone

Classes for the decoder of a model that has an encoder, too. A checkpoint of the whole model is refused; one of such a
class is served, with texts that no encoder has seen.
"""
ENCODERS = """## Encoders that are made causal

Classes for encoders, which compute a causal model if config.json has `is_decoder: true`. Without it they are refused.
"""

WHAT = {
    "ragged": "six prompts of 5 to 95 tokens side by side; the log-probabilities agree, too",
    "chunked": "7 tokens a step, so that parts of prompts are computed beside sequences that decode",
    "cached": "the same prompts again, whose beginnings are then in the prefix cache",
    "preempted": "too few pages for all, so that sequences lose theirs and begin again",
    "tp2": "the model dealt out to two ranks",
    "handed_over": "prompts computed by one engine, decoded by another one from the bytes of the pages",
    "unlike_tp": "handed over from two ranks to one, and from one to two",
    "migrated": "moved to another engine while they decode",
}


def page(rows: dict[str, Row], before: str) -> str:
    """The whole text. `before` is the page as it was: what stands by hand at its end stays."""
    ordered = [rows[name] for name in sorted(rows)]
    all_equal = [row for row in ordered if row.is_equal]
    decoders = [row for row in all_equal if is_decoder_of_more(row.model_type)]
    encoders = [row for row in all_equal if row not in decoders and is_encoder(row.model_type)]
    equal = [row for row in all_equal if row not in decoders and row not in encoders]
    unbuilt = [row for row in ordered if row.not_built]
    refused = [row for row in ordered if row.refused]
    others = [row for row in ordered if row not in all_equal and row not in unbuilt and row not in refused]
    parts = [
        INTRO.format(
            library=LIBRARY,
            version=transformers.__version__,
            num_all=len(ordered),
            num_equal=len(equal),
            num_all_variants=sum(_is_whole(row) for row in equal),
            num_variants=len(VARIANTS),
            num_decoders=len(decoders),
            num_encoders=len(encoders),
            num_refused=len(refused),
            num_differing=len(others),
            num_unbuilt=len(unbuilt),
            variants="\n".join(f"- **{NAMES[name]}**: {WHAT[name]}" for name in VARIANTS),
        ),
        _served(SERVED, equal),
        _served(DECODERS, decoders),
        _served(ENCODERS, encoders),
    ]
    if others:
        parts.append(_differing(others))
    parts += [_reasons("Refused", "why", [(row, row.refused) for row in refused])]
    parts += [_reasons("Not buildable", "why, and the error", [(row, _why_not_built(row)) for row in unbuilt])]
    at = before.find(KEPT)
    parts.append(before[at:].rstrip() + "\n" if at >= 0 else f"{KEPT}\n")
    return "\n".join(parts)


def _why_not_built(row: Row) -> str:
    why = NOT_BUILT.get(row.model_type)
    return f"{why} ({row.not_built})" if why else row.not_built


def _is_whole(row: Row) -> bool:
    return all(name in row.variants and row.variants[name].outcome == "equal" for name in VARIANTS)


def _served(heading: str, rows: list[Row]) -> str:
    lines = [heading, "| architecture | model type | path | equal in | refused |", "|---|---|---|---|---|"]
    for row in rows:
        refused = _grouped(
            (NAMES[name], result.why) for name, result in row.variants.items() if result.outcome != "equal"
        )
        lines.append(
            f"| {row.architecture} | `{row.model_type}` | {row.path}{_weak(row)} | {_equal_in(row)} | {refused} |"
        )
    return "\n".join(lines) + "\n"


def _differing(rows: list[Row]) -> str:
    lines = [
        "## Not equal",
        "",
        "| architecture | model type | path | equal in | what is wrong |",
        "|---|---|---|---|---|",
    ]
    for row in rows:
        wrong = _grouped(
            (f"{NAMES[name]} {result.outcome}", result.why)
            for name, result in row.variants.items()
            if result.outcome != "equal"
        )
        lines.append(
            f"| {row.architecture} | `{row.model_type}` | {row.path}{_weak(row)} | {_equal_in(row)} | {wrong} |"
        )
    return "\n".join(lines) + "\n"


def _reasons(title: str, column: str, rows: list[tuple[Row, str]]) -> str:
    lines = [f"## {title}", "", f"| architecture | model type | {column} |", "|---|---|---|"]
    lines += [f"| {row.architecture} | `{row.model_type}` | {_cell(why)} |" for row, why in rows]
    return "\n".join(lines) + "\n"


def _equal_in(row: Row) -> str:
    if _is_whole(row):
        return "all"
    return ", ".join(NAMES[name] for name, result in row.variants.items() if result.outcome == "equal") or "-"


def _grouped(reasons: Iterable[tuple[str, str]]) -> str:
    by_reason: dict[str, list[str]] = {}
    for name, why in reasons:
        by_reason.setdefault(why, []).append(name)
    return "; ".join(f"{', '.join(names)}: {_cell(why)}" for why, names in by_reason.items())


def _weak(row: Row) -> str:
    return ("" if row.is_strong else " (weak)") + (" (reference without cache)" if row.unsure else "")


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def write_page(path: Path, rows: dict[str, Row]) -> None:
    path.write_text(page(rows, path.read_text() if path.exists() else ""))
