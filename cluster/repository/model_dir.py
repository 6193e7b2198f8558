"""What a start would find wrong with the model directory, found without starting anything and without torch: only JSON
files, the headers of weights and, for `slipstream check`, the tokenizer are read.

Router and workers find the same mistakes with the same functions, each in what it reads.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from slipstream.cluster.config.cluster_config import ClusterConfig
from slipstream.cluster.config.pool_config import PoolConfig
from slipstream.cluster.config.settings_file import Key
from slipstream.router.model_files.sampling_defaults import GenerationConfigError, SamplingDefaults
from slipstream.router.text.conversion import VOCABULARIES, why_code_is_needed
from slipstream.router.text.unknown_tokens import unknown_tokens, warning_about
from slipstream.workers.config.worker_config import EngineConfig
from slipstream.workers.engine.limits.engine_errors import EngineConfigError
from slipstream.workers.engine.limits.general_settings import not_general
from slipstream.workers.engine.limits.pool_size import (
    budget_source,
    elastic_num_pages,
    longest_sequence,
    pool_source,
    stated_num_pages,
)
from slipstream.workers.models.description.describing import RemoteCode, describe
from slipstream.workers.models.description.model_description import CodeNotRunError
from slipstream.workers.models.description.weights_check import check_general_weights
from slipstream.workers.models.directory.end_tokens import end_token_ids
from slipstream.workers.models.directory.json_keys import ModelError
from slipstream.workers.models.directory.model_config import CONFIG_FILE, ModelConfig
from slipstream.workers.models.directory.model_spec import GeneralSpec, LanguageModelSpec, ModelImpl, check_tp
from slipstream.workers.models.directory.stored_quantization import int4_group
from slipstream.workers.models.directory.token_ids import TOKENIZER_FILE, token_ids
from slipstream.workers.models.directory.weight_files import WeightFiles, pickled_file_names
from slipstream.workers.models.sharding.rank_share import Rank
from slipstream.workers.models.sharding.tensor_check import check_ranks, check_tensors
from slipstream.workers.models.spec_reader import NOT_NATIVE, read_spec, why_not_native

PATH: Key = ("model", "path")


def check_model_dir(model_dir: Path, impl: ModelImpl = "auto", code: RemoteCode = "refused") -> str | None:
    """One sentence about the first mistake in a model directory, whatever is to be done with it; None if there is
    none. With `code` elsewhere, a model that has code of its own is only looked at as far as that goes without it."""
    if not model_dir.is_dir():
        return f"{'not a' if model_dir.exists() else 'no such'} directory: {model_dir}"
    if not (model_dir / CONFIG_FILE).exists():
        return f"no {CONFIG_FILE} in {model_dir}"
    try:
        _check_weights(model_dir, impl, code)
        end_token_ids(model_dir)
    except ModelError as error:
        return str(error)
    if not any((model_dir / name).exists() for name in (TOKENIZER_FILE, *VOCABULARIES)):
        return why_code_is_needed(model_dir) or f"no {TOKENIZER_FILE} in {model_dir}"
    return None


def _check_weights(model_dir: Path, impl: ModelImpl, code: RemoteCode) -> None:
    """Raises ModelError, also if config.json is wrong."""
    try:
        spec = read_spec(model_dir, impl, code, in_subprocess=True)
    except CodeNotRunError:
        if not pickled_file_names(model_dir):
            WeightFiles.read(model_dir)
        return
    if isinstance(spec, ModelConfig):
        check_tensors(spec, WeightFiles.read(model_dir))
    else:
        check_general_weights(model_dir, describe(model_dir, code))


def model_problems(model_dir: Path, config: ClusterConfig) -> Iterator[tuple[Key, str]]:
    """The mistakes in a model directory, and in what the pools demand of the model: the key of the configuration that
    each belongs to, and a sentence."""
    code, impl = code_of(config), config.decode.engine.model_impl
    if config.prefill.engine.model_impl != impl:
        reason = f"must be that of decode, {impl}, got {config.prefill.engine.model_impl}: pages are made for one code"
        yield ("prefill", "engine", "model_impl"), reason
        return
    problem = check_model_dir(model_dir, impl, code)
    if problem is not None:
        yield PATH, problem
        return
    try:
        SamplingDefaults.read(model_dir, config.model.generation_config)
    except GenerationConfigError as error:
        yield PATH, str(error)
    try:
        model = read_spec(model_dir, impl, code, in_subprocess=True)
    except CodeNotRunError:  # the workers find out what is wrong with the pools
        return
    for role, pool in config.pools():
        problem = _tp_problem(model, pool.tp)
        if problem is not None:
            yield (role, "tp"), problem
            continue
        budget_bytes = _budget_bytes(config, pool.engine)
        yield from (
            ((role, *key), problem) for key, problem in _pool_problems(role, pool, model, model_dir, budget_bytes)
        )
        if budget_bytes is not None and pool.engine.device == "cpu":  # `auto` may find a GPU there
            yield from _budget_problems(role, pool, model, budget_bytes)


def model_warnings(config: ClusterConfig) -> Iterator[str]:
    """What is allowed about the model of a checked configuration, but probably a mistake: sentences that begin with
    the key."""
    model_dir, impl = Path(config.model.path), config.decode.engine.model_impl
    try:
        model = read_spec(model_dir, impl, code_of(config), in_subprocess=True)
        vocab_size = model.vocab_size
        unknown = unknown_tokens(token_ids(model_dir), vocab_size)
        ends = [token_id for token_id in end_token_ids(model_dir) if token_id >= vocab_size]
        reason = why_not_native(model_dir) if impl == "auto" else None
    except CodeNotRunError:
        yield f"model.trust_remote_code is true: only the workers run code of {model_dir}, and check shapes and tp"
        return
    except ModelError:  # the files have changed since they were checked, which the workers will report
        return
    if isinstance(model, ModelConfig) and model.moe is None:
        for role, pool in config.pools():
            if pool.engine.expert_parallel:
                yield f"{role}.engine.expert_parallel: true changes nothing: the model has no experts"
    if reason is not None:
        yield f"model.path: {reason}: {NOT_NATIVE}"
    if unknown:
        yield f"model.path: {warning_about(unknown, vocab_size)}"
    if ends:
        named = ", ".join(map(str, ends))
        yield f"model.path: {named} in eos_token_id: beyond the model's vocab_size = {vocab_size}, so it ends no answer"


def model_notes(config: ClusterConfig) -> Iterator[str]:
    """Limits of the model of a checked configuration that config.json does not show: those of its implementation in
    transformers, and a context that the pages of the decode workers cut short."""
    engine = config.decode.engine
    budget_bytes = _budget_bytes(config, engine)
    try:
        model = read_spec(Path(config.model.path), engine.model_impl, code_of(config), in_subprocess=True)
    except ModelError:  # code that only the workers run, or files that have changed since they were checked
        return
    if isinstance(model, GeneralSpec):
        yield from model.notes
    if engine.max_model_len is not None or (budget_bytes is not None and engine.device != "cpu"):
        return
    rank = Rank(0, config.decode.tp)
    if budget_bytes is not None:
        num_pages: int | None = elastic_num_pages(model, engine, rank, budget_bytes)
        source = budget_source(budget_bytes)
    else:
        num_pages, source = stated_num_pages(model, engine, rank), pool_source(engine)
    if num_pages is None:  # it depends on the memory that is free at the start
        return
    longest = longest_sequence(model, engine, num_pages, source)
    if longest < model.max_position_embeddings:
        yield f"context of {longest} tokens, of the model's {model.max_position_embeddings}: {source} holds no more"


def _budget_bytes(config: ClusterConfig, engine: EngineConfig) -> int | None:
    """The budget for the pages of a pool; they are not elastic on a GPU."""
    return config.budget.memory_bytes if engine.device != "cuda" else None


def code_of(config: ClusterConfig) -> RemoteCode:
    """What the driver may do with code in the model's directory. It never runs it."""
    return "elsewhere" if config.model.trust_remote_code else "refused"


class TextFindings(NamedTuple):
    """What is wrong with the tokenizer or the chat template, and how outputs are read if nothing is."""

    problem: str | None
    outputs: str = ""


def examine_text(config: ClusterConfig) -> TextFindings:
    """What the router finds at its start, in its words. With a large vocabulary this takes seconds and much memory, so
    only `slipstream check` looks for it before."""
    # Imported here because they take tens of milliseconds, which only this should pay.
    from slipstream.router.catalog.model_outputs import ModelOutputs
    from slipstream.router.text.encoding import encode_pool
    from slipstream.router.text.tokenizer import Tokenizer, TokenizerError
    from slipstream.router.text.tokenizer_files import read_json

    path = Path(config.model.path)
    try:
        with encode_pool() as pool:
            tokenizer = Tokenizer.from_directory(path, pool, config.model.chat_template_content_format)
        outputs = ModelOutputs.of(tokenizer, read_json(path / "config.json"), config.model.parsers)
    except (OSError, TokenizerError) as error:
        return TextFindings(f"model.path: {error}")
    return TextFindings(None, outputs.described() if tokenizer.chat_template is not None else "")


def _tp_problem(model: LanguageModelSpec, tp: int) -> str | None:
    if isinstance(model, ModelConfig):
        names = {"num_attention_heads": "num_heads", "num_key_value_heads": "num_kv_heads"}
        for what, count in model.divided:
            if count % tp:
                return f"must divide the model's {names.get(what, what)} = {count}, got {tp}"
        return None
    try:
        check_tp(model, tp)
    except ModelError as error:
        return f"{error}, got {tp}"
    return None


def _budget_problems(
    role: str, pool: PoolConfig, model: LanguageModelSpec, budget_bytes: int
) -> Iterator[tuple[Key, str]]:
    """What the memory of a host can never hold."""
    try:
        num_pages = elastic_num_pages(model, pool.engine, Rank(0, pool.tp), budget_bytes)
        longest_sequence(model, pool.engine, num_pages, budget_source(budget_bytes), holds_prompts=role == "prefill")
    except EngineConfigError as error:
        key, _, reason = str(error).partition(" ")
        yield ("budget", "memory_gib") if key.startswith("budget.") else (role, "engine", key), reason


def _feed_forward_inputs(model: ModelConfig, expert_ranks: int, tp: int) -> Iterator[int]:
    """Of the down projections of a rank."""
    if model.has_dense_layers:
        yield model.intermediate_size // tp
    if model.moe is not None:
        yield model.moe.intermediate_size // expert_ranks


def _pool_problems(
    role: str, pool: PoolConfig, model: LanguageModelSpec, model_dir: Path, budget_bytes: int | None
) -> Iterator[tuple[Key, str]]:
    engine, rank = pool.engine, Rank(0, pool.tp)
    if isinstance(model, ModelConfig):
        yield from _native_problems(pool, model, model_dir)
    if isinstance(model, GeneralSpec):
        yield from (
            (("engine", key), f"{reason}, got {str(getattr(engine, key)).lower()}")
            for key, reason in not_general(engine, model)
        )
    longest = model.max_position_embeddings
    if (engine.max_model_len or 0) > longest:
        yield (
            ("engine", "max_model_len"),
            f"must be at most the model's {longest} positions, got {engine.max_model_len}",
        )
        return
    if budget_bytes is not None:  # the pool follows from that
        return
    try:
        num_pages = stated_num_pages(model, engine, rank)
        if num_pages is not None:
            longest_sequence(model, engine, num_pages, holds_prompts=role == "prefill")
    except EngineConfigError as error:
        key, _, reason = str(error).partition(" ")
        yield ("engine", key), reason


def _native_problems(pool: PoolConfig, model: ModelConfig, model_dir: Path) -> Iterator[tuple[Key, str]]:
    try:
        check_ranks(model, WeightFiles.read(model_dir), pool.tp, expert_parallel=pool.engine.expert_parallel)
    except ModelError as error:
        yield ("tp",), f"{error}, got {pool.tp}"
    if pool.engine.quantization == "int4" and model.quantization is None:
        try:
            for inputs in (
                model.hidden_size,
                model.num_heads * model.head_dim // pool.tp,
                *_feed_forward_inputs(model, 1 if pool.engine.expert_parallel else pool.tp, pool.tp),
            ):
                int4_group(inputs)
        except ModelError as error:
            yield ("engine", "quantization"), str(error).removeprefix("quantization ")
