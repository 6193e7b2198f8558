"""Proves at load that a model computes over our pages what it computes with its own attention."""

from __future__ import annotations

import torch
from torch import Tensor

from slipstream.workers.models.directory.json_keys import ModelError
from slipstream.workers.models.general.flat_model import FlatModel
from slipstream.workers.models.general.registered import attention_of
from slipstream.workers.models.interface.kv_shape import kv_shape
from slipstream.workers.models.interface.step_arrays import SequenceSlice
from slipstream.workers.models.interface.step_batch import StepBatch

LENGTHS = (11, 4, 19)  # of the sequences, which are computed side by side
CHUNK = 7  # tokens of a sequence in a step
# How far scores may be off, relative to how far they are apart. Eager attention rounds after each product, ours does
# not; and in 16 bits, a router of experts may choose another one for a few tokens, so there half of the rows count.
MAX_ERROR = {torch.float32: 2e-3, torch.bfloat16: 0.1, torch.float16: 0.05}


def check_against_eager(flat: FlatModel, page_tokens: int) -> None:
    """Computes a few sequences in chunks over pages, and each by itself with the model's own attention, and compares
    the scores. Raises ModelError."""
    vocab_size = flat.spec.vocab_size
    prompts = [
        tuple((7 * at + 3 * number + 5) % vocab_size for at in range(length)) for number, length in enumerate(LENGTHS)
    ]
    expected = _own_scores(flat, prompts)
    found = _paged_scores(flat, prompts, page_tokens)
    if flat.tp.rank or found is None:
        return
    spread = (expected - expected.mean(-1, keepdim=True)).norm(dim=-1)
    errors = (found - expected).norm(dim=-1) / spread.clamp_min(1e-6)
    error = float(errors.max() if flat.dtype == torch.float32 else errors.median())
    if not error <= MAX_ERROR[flat.dtype]:  # nor if it is not a number
        raise ModelError(
            f"{flat.spec.architecture} cannot be served over pages: its scores would be off by {error:.1%} "
            f"(self-check against its own attention)"
        )


@torch.inference_mode()
def _own_scores(flat: FlatModel, prompts: list[tuple[int, ...]]) -> Tensor:
    """[tokens at the ends of chunks, vocab_size] with the model's own attention, each sequence by itself."""
    rows = []
    with attention_of(flat.model, "eager"):
        for prompt in prompts:
            tokens = torch.tensor([prompt], device=flat.device)
            positions = torch.arange(len(prompt), device=flat.device)[None]
            scores = flat.model(input_ids=tokens, position_ids=positions, use_cache=False).logits[0]
            rows.append(scores[_chunk_ends(len(prompt))])
    return torch.cat(rows)[:, : flat.spec.vocab_size].float()


def _paged_scores(flat: FlatModel, prompts: list[tuple[int, ...]], page_tokens: int) -> Tensor | None:
    """The same rows over pages, all sequences side by side; None on ranks other than 0."""
    of_one = -(-max(LENGTHS) // page_tokens)
    shape = kv_shape(flat.spec, flat.tp, of_one * len(prompts), page_tokens)
    kv = torch.zeros(shape, dtype=flat.dtype, device=flat.device)
    rows: list[list[Tensor]] = [[] for _ in prompts]
    for start in range(0, max(LENGTHS), CHUNK):
        slices, numbers = [], []
        for number, prompt in enumerate(prompts):
            if start >= len(prompt):
                continue
            end = min(start + CHUNK, len(prompt))
            first = number * of_one
            pages = torch.arange(first, first + -(-end // page_tokens), dtype=torch.int32).numpy().tobytes()
            slices.append(SequenceSlice(start, prompt[start:end], pages, True))
            numbers.append(number)
        scores = flat.scores(StepBatch.build(slices, page_tokens, flat.device), kv)
        for number, row in zip(numbers, scores if scores is not None else (), strict=False):
            rows[number].append(row)
    return None if flat.tp.rank else torch.stack([row for one in rows for row in one])


def _chunk_ends(length: int) -> list[int]:
    return [min(start + CHUNK, length) - 1 for start in range(0, length, CHUNK)]
