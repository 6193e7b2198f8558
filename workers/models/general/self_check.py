"""Proves at load that a model computes over our pages what it computes with its own attention."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

import torch
from torch import Tensor
from transformers import PreTrainedModel

from slipstream.workers.models.directory.json_keys import ModelError
from slipstream.workers.models.directory.model_spec import GeneralSpec
from slipstream.workers.models.general.pretrained import sentence, takes
from slipstream.workers.models.general.registered import attention_of
from slipstream.workers.models.interface.kv_shape import kv_shape
from slipstream.workers.models.interface.model import Model
from slipstream.workers.models.interface.step_arrays import SequenceSlice
from slipstream.workers.models.interface.step_batch import StepBatch
from slipstream.workers.models.interface.tensor_parallel import TensorParallel

LENGTHS = (13, 6, 21)  # of the sequences, which are computed side by side
CHUNK = 7  # tokens of a sequence in a step, or more
NUM_CHUNKS = 4  # of a longer sequence, about
NUM_SINGLE = 2  # tokens at a sequence's end that are computed one by one
# How far scores may be off, relative to how far they are apart. Eager attention rounds after each product, ours does
# not; and in 16 bits, a router of experts may choose another one for a few tokens, so there half of the rows count.
MAX_ERROR = {torch.float32: 2e-3, torch.bfloat16: 0.1, torch.float16: 0.05}
OF_STATES = 5  # times as much: a recurrent layer that gets its tokens in other chunks adds up in another order
OF_CHOICES = 5  # in 16 bits, where an indexer chooses so few tokens that one more or less matters


class SelfCheckError(ModelError):
    """What is computed over pages is not what the model computes."""


class GeneralModel(Model, Protocol):
    """A `Model` made from one of transformers."""

    spec: GeneralSpec
    device: torch.device
    tp: TensorParallel


@dataclass(frozen=True, slots=True)
class _Prompt:
    tokens: tuple[int, ...]

    @property
    def chunks(self) -> list[tuple[int, int]]:
        """First and end of each."""
        whole = len(self.tokens) - NUM_SINGLE
        chunk = max(CHUNK, -(-len(self.tokens) // NUM_CHUNKS))
        bounds = [*range(0, whole, chunk), *range(whole, len(self.tokens) + 1)]
        return list(pairwise(bounds))


def check_scores(general: GeneralModel, expected: Tensor, page_tokens: int) -> None:
    """Computes a few sequences in chunks over pages, and compares their scores with `eager_scores` of the model that
    `general` was made from. Raises SelfCheckError."""
    found = paged_scores(general, page_tokens)
    if found is not None:
        check_errors(general, row_errors(found, expected))


def check_errors(general: GeneralModel, errors: Tensor, *, few_chosen: bool = False) -> None:
    """`errors` are those of `paged_scores`. `few_chosen`: its indexers choose a few tokens only. Raises
    SelfCheckError."""
    error = float(errors.max() if general.dtype == torch.float32 else errors.median())
    allowed = MAX_ERROR[general.dtype] * (OF_STATES if general.spec.kv.state_bytes else 1)
    if few_chosen and general.dtype != torch.float32:
        allowed *= OF_CHOICES
    if not error <= allowed:  # nor if it is not a number
        raise SelfCheckError(
            f"{general.spec.architecture} cannot be served over pages: its scores would be off by {error:.1%} "
            f"(self-check against its own attention)"
        )


def row_errors(found: Tensor, expected: Tensor) -> Tensor:
    """[rows]: how far each row of scores is off, relative to how far the expected ones are apart."""
    spread = (expected - expected.mean(-1, keepdim=True)).norm(dim=-1)
    errors: Tensor = (found - expected).norm(dim=-1) / spread.clamp_min(1e-6)
    return errors


def _does_not_run(spec: GeneralSpec, failure: Exception) -> SelfCheckError:
    return SelfCheckError(f"{spec.architecture} cannot be served over pages: it does not run: {sentence(failure)}")


def _prompts(spec: GeneralSpec, lengths: Sequence[int]) -> list[_Prompt]:
    return [
        _Prompt(tuple((7 * at + 3 * number + 5) % spec.vocab_size for at in range(length)))
        for number, length in enumerate(lengths)
    ]


def rows_behind_states(spec: GeneralSpec, lengths: Sequence[int]) -> Tensor:
    """[rows]: which of `paged_scores` depend on a call with several tokens behind those of another call."""
    rows: list[bool] = []
    for prompt in _prompts(spec, lengths):
        several = [end - start > 1 for start, end in prompt.chunks[1:]]
        rows += [False, *(any(several[: at + 1]) for at in range(len(several)))]
    return torch.tensor(rows)


@torch.inference_mode()
def eager_scores(model: PreTrainedModel, spec: GeneralSpec, lengths: Sequence[int] = LENGTHS) -> Tensor:
    """[tokens at the ends of chunks, vocab_size] with the model's own attention, each sequence by itself. Raises
    SelfCheckError if the model does not run, or if its scores are no numbers."""
    rows = []
    try:
        with attention_of(model, "eager"):
            for prompt in _prompts(spec, lengths):
                tokens = torch.tensor([prompt.tokens], device=model.device)
                positions = torch.arange(len(prompt.tokens), device=model.device)[None]
                options = {"position_ids": positions} if takes(model, "position_ids") else {}
                scores = model(input_ids=tokens, use_cache=False, **options).logits[0]
                rows.append(scores[[end - 1 for _, end in prompt.chunks]])
    except Exception as failure:  # whatever the model's class raises
        raise _does_not_run(spec, failure) from failure
    found = torch.cat(rows)[:, : spec.vocab_size].float()
    if not found.isfinite().all():
        raise SelfCheckError(f"{spec.architecture}: its scores are no numbers; {_damaged_weight(model)}")
    return found


def _damaged_weight(model: PreTrainedModel) -> str:
    from torch.distributed.tensor import DTensor  # rarely needed

    for name, parameter in model.named_parameters():
        tensor = parameter.to_local() if isinstance(parameter, DTensor) else parameter
        if tensor.dtype in (torch.float32, torch.bfloat16, torch.float16) and not tensor.isfinite().all():
            return f"those of the weight {name} are none"
    return "are its weights damaged?"


def paged_scores(general: GeneralModel, page_tokens: int, lengths: Sequence[int] = LENGTHS) -> Tensor | None:
    """The rows of `eager_scores` over pages, all sequences side by side; None on ranks other than 0. Raises
    SelfCheckError if the model does not run."""
    try:
        return _paged_scores(general, page_tokens, lengths)
    except Exception as failure:  # whatever the model's class raises
        raise _does_not_run(general.spec, failure) from failure


def _paged_scores(general: GeneralModel, page_tokens: int, lengths: Sequence[int]) -> Tensor | None:
    spec, dtype, prompts = general.spec, general.dtype, _prompts(general.spec, lengths)
    of_one, num_groups = -(-max(lengths) // page_tokens), len(spec.kv.page_groups.windows)
    page_bytes = math.prod(kv_shape(spec, general.tp, 1, page_tokens, dtype)) * dtype.itemsize
    of_state = -(-spec.kv.state_bytes // page_bytes)
    num_pages = (of_one * num_groups + of_state) * len(prompts)
    shape = kv_shape(spec, general.tp, num_pages, page_tokens, dtype)
    kv = torch.zeros(shape, dtype=general.dtype, device=general.device)
    rows: list[list[Tensor]] = [[] for _ in prompts]
    for step in range(max(len(prompt.chunks) for prompt in prompts)):
        slices, numbers = [], []
        for number, prompt in enumerate(prompts):
            if step >= len(prompt.chunks):
                continue
            start, end = prompt.chunks[step]
            firsts = [(number * num_groups + group) * of_one for group in range(num_groups)]
            num_own = -(-end // page_tokens)
            pages, *more = (
                torch.arange(first, first + num_own, dtype=torch.int32).numpy().tobytes() for first in firsts
            )
            after = num_pages - (number + 1) * of_state
            states = torch.arange(after, after + of_state, dtype=torch.int32).numpy().tobytes()
            slices.append(SequenceSlice(start, prompt.tokens[start:end], pages, True, tuple(more), states))
            numbers.append(number)
        scores = general.scores(StepBatch.build(slices, page_tokens, general.device), kv)
        for number, row in zip(numbers, scores if scores is not None else (), strict=False):
            rows[number].append(row)
    return None if general.tp.rank else torch.stack([row for one in rows for row in one])
