"""Checks one architecture in this process, from its tiny model to its last variant."""

from __future__ import annotations

import logging
import os
import tempfile
import time
import traceback
import warnings
from collections.abc import Sequence
from pathlib import Path

import torch
import transformers

from slipstream.workers.models.directory.json_keys import ModelError
from slipstream.workers.models.general.cached.cached_model import CachedModel

from .rank_group import ForkedRanks, LocalRanks, RankFailedError
from .reference import Reference
from .row import ModelPath, Result, Row
from .tiny_models.tiny_config import model_types
from .tiny_models.tiny_model import build
from .variants import NEED_PAIR, VARIANTS, DiffersError, NotServedError, Setting, engine_config

MAX_TEXT = 400


def check(model_type: str, variants: Sequence[str], model_impl: str = "auto") -> Row:
    """Never raises for what a model does."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    logging.getLogger("transformers").setLevel(logging.CRITICAL)
    row = Row(model_type, model_types()[model_type])
    began_s = time.monotonic()
    pair = ForkedRanks(2 if NEED_PAIR & set(variants) else 0)
    try:
        with tempfile.TemporaryDirectory() as folder:
            os.environ["XDG_CACHE_HOME"] = str(Path(folder) / "cache")  # where what is known of models is kept
            _check(row, Path(folder) / "model", variants, model_impl, pair)
    finally:
        pair.close()
    row.seconds = round(time.monotonic() - began_s, 1)
    return row


def _check(row: Row, folder: Path, variants: Sequence[str], model_impl: str, pair: ForkedRanks) -> None:
    try:
        built = build(row.model_type, folder)
    except Exception as error:
        row.not_built = in_short(error)
        return
    row.strength, row.is_strong = built.strength.as_json(), built.strength.is_strong
    row.num_parameters, row.trial = built.num_parameters, built.trial
    reference = built.reference
    try:
        row.unsure = reference.inconsistency()
        if row.unsure:
            reference = reference.without_cache()
    except Exception as error:
        row.unsure = in_short(error)
    _serve(row, folder, variants, model_impl, pair, reference)


def _serve(
    row: Row, folder: Path, variants: Sequence[str], model_impl: str, pair: ForkedRanks, reference: Reference
) -> None:
    config = engine_config(model_impl)
    try:
        local, other = LocalRanks.load(folder, config), LocalRanks.load(folder, config)
    except ModelError as error:
        row.refused = cut(str(error).replace(str(folder), "the model"))
        return
    except Exception as error:
        row.refused = f"(crash) {in_short(error)}"
        return
    row.path = path_of(local)
    no_pair = _load_pair(folder, pair, model_impl) if pair.size else Result("refused", "not asked for")
    setting = Setting(folder, config, reference, local, other, pair)
    for name in variants:
        if name in NEED_PAIR and no_pair is not None:
            row.variants[name] = no_pair
        else:
            row.variants[name] = _try(name, setting)


def _load_pair(folder: Path, pair: ForkedRanks, model_impl: str) -> Result | None:
    try:
        pair.load(folder, engine_config(model_impl))
    except RankFailedError as error:
        return Result("refused" if error.is_refusal else "failed", cut(str(error).replace(str(folder), "the model")))
    return None


def _try(name: str, setting: Setting) -> Result:
    try:
        VARIANTS[name](setting)
    except DiffersError as error:
        return Result("differs", cut(str(error)))
    except NotServedError as error:
        return Result("refused", str(error))
    except Exception as error:
        return Result("failed", in_short(error))
    return Result("equal")


def path_of(ranks: LocalRanks) -> ModelPath:
    """Which of this project's ways computes the model."""
    if ".general." not in type(ranks.runner.model).__module__:
        return "native"
    return "cached" if isinstance(ranks.runner.model, CachedModel) else "flat"


def in_short(error: Exception) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
    return cut(f"{type(error).__name__}: {' '.join(str(error).split())}") + where


def cut(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= MAX_TEXT else text[: MAX_TEXT - 3] + "..."
