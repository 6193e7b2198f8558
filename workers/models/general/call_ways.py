"""Finds out how a model that computes with a `Cache` over our pages may be called.

The slowest way is compared with the model's own attention: each sequence by itself, and the tokens behind a state one
by one. A faster way is compared with that one, in the same dtype. So rounding hides little of what it does wrong.
"""

from __future__ import annotations

import torch
from torch import Tensor

from slipstream.workers.models.general.cached.cached_model import CachedModel
from slipstream.workers.models.general.indexers import few_chosen
from slipstream.workers.models.general.self_check import (
    LENGTHS,
    MAX_ERROR,
    OF_STATES,
    SelfCheckError,
    check_errors,
    eager_scores,
    paged_scores,
    row_errors,
    rows_behind_states,
)

SHORT = (*LENGTHS, 9, 11)  # lengths of sequences: more than in every check, so that more decode beside longer ones
BEYOND_RUN = (6, 9)  # tokens more than the longest run of which a model makes one entry: the two decode side by side
# In 16 bits a router of experts may choose another one for a few rows. Sequences side by side are computed by the same
# operators, so one row is much; behind states others compute, and rows depend on the ones before them.
MAX_FLIPPED = 1  # rows
MAX_FLIPPED_SHARE = 1 / 3  # of the rows behind states
CONTRADICTION_RATIO = 3  # of the errors of two ways: then the one with the larger error is wrong, not the other


def find_way(cached: CachedModel, page_tokens: int) -> None:
    """Sets `can_batch` and `can_continue`. Raises SelfCheckError if the model cannot be called in any way, and
    ModelError if it has indexers of a form that is not known."""
    _check_ways(cached, page_tokens, few=False)
    if cached.spec.kv.has_indexers:
        with few_chosen(cached.model):
            _check_ways(cached, page_tokens, few=True)


def _check_ways(cached: CachedModel, page_tokens: int, *, few: bool) -> None:
    """Takes back what the model cannot do of `can_batch` and `can_continue`."""
    can_batch, can_continue = cached.can_batch, cached.can_continue
    # Among the entries of a long text some are equally good, and which of them is chosen depends on the call.
    lengths = SHORT if few else SHORT + _longer_than_runs(cached)
    own = eager_scores(cached.model, cached.spec, lengths)
    cached.can_batch, cached.can_continue = False, not cached.spec.kv.state_bytes
    found = _scores(cached, page_tokens, lengths)
    check_errors(cached, row_errors(found, own), few_chosen=few)
    if can_continue and not cached.can_continue:
        cached.can_continue = True
        continued = _scores_if_it_runs(cached, page_tokens, lengths)
        if continued is not None and _continues(cached, continued, found, own, lengths):
            found = continued
        else:
            cached.can_continue = False
    if can_batch:
        cached.can_batch = True
        batched = _scores_if_it_runs(cached, page_tokens, lengths)
        most = _max_differing_rows(cached, MAX_FLIPPED)
        cached.can_batch = batched is not None and _num_differing_rows(cached, batched, found) <= most


def _continues(cached: CachedModel, continued: Tensor, singly: Tensor, own: Tensor, lengths: tuple[int, ...]) -> bool:
    """Whether several tokens behind a state are computed as one by one. Raises SelfCheckError if they are not, and
    neither is what the model computes without a cache."""
    behind = rows_behind_states(cached.spec, lengths)
    continued, singly, own = continued[behind], singly[behind], own[behind]
    if _num_differing_rows(cached, continued, singly) <= _max_differing_rows(cached, MAX_FLIPPED_SHARE * len(own)):
        return True
    error = float(row_errors(singly, own).median())
    if not CONTRADICTION_RATIO * error <= float(row_errors(continued, own).median()):
        raise SelfCheckError(
            f"{cached.spec.architecture} cannot be served over pages: after a state, tokens computed one by one and "
            f"several at a time get different scores, and neither are those of its own attention (off by {error:.1%}, "
            f"self-check)"
        )
    return False


def _num_differing_rows(cached: CachedModel, found: Tensor, expected: Tensor) -> int:
    """The number of rows that differ by more than rounding explains."""
    is_exact = cached.dtype == torch.float32
    allowed = MAX_ERROR[cached.dtype] * (OF_STATES if is_exact and cached.spec.kv.state_bytes else 1)
    return int((~(row_errors(found, expected) <= allowed)).sum())  # also those that are no numbers


def _max_differing_rows(cached: CachedModel, in_16_bits: float) -> float:
    return 0 if cached.dtype == torch.float32 else in_16_bits


def _scores(cached: CachedModel, page_tokens: int, lengths: tuple[int, ...]) -> Tensor:
    found = paged_scores(cached, page_tokens, lengths)
    assert found is not None, "a cached model has one rank"
    return found


def _scores_if_it_runs(cached: CachedModel, page_tokens: int, lengths: tuple[int, ...]) -> Tensor | None:
    try:
        return _scores(cached, page_tokens, lengths)
    except SelfCheckError:
        return None


def _longer_than_runs(cached: CachedModel) -> tuple[int, ...]:
    """Lengths of two sequences that are longer than the longest run of tokens that layers make one entry of
    (DeepSeek V4); none if there are no such layers."""
    rates = getattr(cached.model.config.get_text_config(), "compress_rates", None)
    longest = max(rates.values(), default=0) if isinstance(rates, dict) else 0
    return tuple(longest + more for more in BEYOND_RUN) if longest else ()
