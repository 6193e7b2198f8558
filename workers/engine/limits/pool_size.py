"""How many pages a pool of KV has, and how long sequences may be: figures, free of torch."""

from __future__ import annotations

from slipstream.workers.config.worker_config import EngineConfig
from slipstream.workers.engine.limits.engine_errors import EngineConfigError
from slipstream.workers.engine.limits.page_demand import PageDemand
from slipstream.workers.models.directory.model_config import DtypeName
from slipstream.workers.models.directory.model_spec import GeneralSpec, LanguageModelSpec
from slipstream.workers.models.sharding.rank_share import Rank

ITEM_BYTES: dict[DtypeName, int] = {"float32": 4, "bfloat16": 2, "float16": 2}
CODE_SCALE_BYTES = 4  # of a token and head in eight bits; see `pages.quantized_kv`
MAX_TOKEN_PLACES = 2**31 - 1  # places of tokens in a pool are int32 numbers
MIN_MODEL_LEN = 2  # a token of prompt and one of output


def page_bytes(model: LanguageModelSpec, config: EngineConfig, rank: Rank) -> int:
    """Size of a page in a rank's pool: keys and values of `page_tokens` tokens in the layers of a page group, which may
    be all layers. Where nothing is stored of single tokens, the size of a state. Raises ModelError if the KV heads
    cannot be dealt out to the group."""
    if model.kv.is_state_only:
        return model.kv.state_bytes
    own_units = rank.shard(model.kv.num_units, "num_key_value_heads")
    num_units: int = own_units.stop - own_units.start
    dtype = model.dtype if config.dtype == "auto" else config.dtype
    of_unit = model.kv.unit_numbers * ITEM_BYTES[dtype]
    if config.kv_cache_dtype != "auto":
        of_unit = 2 * (model.kv.head_dim + CODE_SCALE_BYTES)
    return model.kv.page_groups.num_slots * num_units * config.page_tokens * of_unit


def page_tokens(model: LanguageModelSpec, config: EngineConfig) -> int:
    """Tokens of a page: all that a sequence can have, where its one page holds a state and nothing of single tokens."""
    return model.max_position_embeddings if model.kv.is_state_only else config.page_tokens


def num_state_pages(model: LanguageModelSpec, config: EngineConfig) -> int:
    """Pages that a sequence's state takes beside those of its tokens. Such models are not dealt out to several
    ranks."""
    if model.kv.is_state_only or not model.kv.state_bytes:
        return 0
    return -(-model.kv.state_bytes // page_bytes(model, config, Rank()))


def pool_source(config: EngineConfig) -> str:
    """The setting that the size of the pool follows from."""
    if config.num_pages is not None:
        return f"num_pages {config.num_pages}"
    return f"kv_cache_mib {config.kv_cache_mib}"


def stated_num_pages(model: LanguageModelSpec, config: EngineConfig, rank: Rank) -> int | None:
    """The pages that the settings ask for; None if that depends on the memory that is free. Raises
    EngineConfigError."""
    if config.num_pages is not None:
        return config.num_pages
    if config.kv_cache_mib == "auto":
        return None
    of_page = page_bytes(model, config, rank)
    num_pages = config.kv_cache_mib * 2**20 // of_page
    if num_pages < 1:
        raise EngineConfigError(f"{pool_source(config)} does not hold a single page of {of_page} bytes")
    if model.kv.is_state_only:  # small states: the pool takes less memory than it may
        return min(num_pages, MAX_TOKEN_PLACES // page_tokens(model, config))
    return num_pages


def budget_source(kv_budget_bytes: int) -> str:
    """The setting that the size of an elastic pool follows from."""
    return f"budget.memory_gib {kv_budget_bytes / 2**30:g}"


def page_demand(model: LanguageModelSpec, config: EngineConfig, *, holds_prompts: bool = False) -> PageDemand:
    """What sequences take of the pool. `holds_prompts`: in a prefill worker."""
    windows = model.kv.page_groups.windows
    is_whole = holds_prompts or config.scheduler_policy == "guaranteed_no_evict"
    state_pages = num_state_pages(model, config)
    return PageDemand(page_tokens(model, config), windows, config.most_step_tokens, is_whole, state_pages)


def most_useful_pages(model: LanguageModelSpec, config: EngineConfig) -> int:
    """More pages than `max_num_seqs` sequences of full length can fill are of no use. Where a sequence is one page, as
    many are of use for the states that the prefix cache keeps."""
    longest = config.max_model_len or model.max_position_embeddings
    num_pages = config.most_num_seqs * page_demand(model, config, holds_prompts=True).pages_for(longest)
    if model.kv.is_state_only and config.prefix_caching:
        return max(num_pages, min(2 * num_pages, MAX_TOKEN_PLACES // page_tokens(model, config)))
    return num_pages


def elastic_num_pages(model: LanguageModelSpec, config: EngineConfig, rank: Rank, kv_budget_bytes: int) -> int:
    """The pages of a pool that may grow to the whole budget of its host, for all ranks of its group together; but no
    more than `num_pages`, or than `max_num_seqs` sequences of full length can fill. Raises EngineConfigError."""
    of_page = page_bytes(model, config, rank) * rank.size
    num_pages = kv_budget_bytes // of_page
    if num_pages < 1:
        raise EngineConfigError(f"{budget_source(kv_budget_bytes)} does not hold a single page of {of_page} bytes")
    return min(num_pages, most_useful_pages(model, config), config.num_pages or num_pages)


def longest_sequence(
    model: LanguageModelSpec,
    config: EngineConfig,
    num_pages: int,
    source: str | None = None,
    *,
    holds_prompts: bool = False,
) -> int:
    """`max_model_len`, or without it what the model allows and the pool holds. `source` is the setting that the pool
    follows from, if that is not the engine's own. `holds_prompts`: in a prefill worker. Raises EngineConfigError."""
    source = source or pool_source(config)
    if model.kv.is_state_only and num_pages * page_tokens(model, config) > MAX_TOKEN_PLACES:
        most = MAX_TOKEN_PLACES // page_tokens(model, config)
        raise EngineConfigError(
            f"{source} makes {num_pages} pages, of which each holds a sequence of up to {page_tokens(model, config)} "
            f"tokens; set num_pages to {most} at most"
        )
    demand, longest = page_demand(model, config, holds_prompts=holds_prompts), config.max_model_len
    num_tokens = demand.most_tokens(num_pages, model.max_position_embeddings)
    if longest is None:
        longest = min(model.max_position_embeddings, num_tokens)
        if longest < MIN_MODEL_LEN:
            raise EngineConfigError(f"{source} holds {longest} tokens, which leaves no room for output")
    elif longest < MIN_MODEL_LEN:
        raise EngineConfigError(f"max_model_len must be at least {MIN_MODEL_LEN}, got {longest}")
    elif longest > model.max_position_embeddings:
        notes = "; ".join(("", *model.notes)) if isinstance(model, GeneralSpec) else ""
        raise EngineConfigError(
            f"max_model_len {longest} is over the model's {model.max_position_embeddings} positions{notes}"
        )
    elif longest > num_tokens:
        raise EngineConfigError(f"max_model_len {longest} is over the {num_tokens} tokens that {source} holds")
    return longest
