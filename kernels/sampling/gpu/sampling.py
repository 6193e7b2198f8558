"""One token a row from logits, all on the device: greedy, or drawn after temperature, min_p, top_k and top_p.

The same path, with the same draw, as `workers.engine.sampler` has in torch: the draw is an inverse CDF in order of
token ids at a number that the host hashed from seed and position; a tie at the edge of top_k or top_p goes to the lower
id. Sums of weights are float64 in both, exponentials float32, rounded differently: the two differ where a draw or an
edge falls between two roundings, about once in a million draws.

Nothing is sorted. The edge of top_k (of a count) and of top_p (of a mass) is searched for: a pass over the row measures
what lies above each of eight thresholds, and the next pass divides the part in which the edge is, until that holds one
token or only equal ones.

    lo                                        hi
    | . . | . . . . |  .  | edge in here | .  |         scores, best on the right
    t0    t1        t2    t3             t4
                          ^-- next lo    ^-- next hi

One program does a row, out of the L2: a vocabulary of 128k is 0.5 MB, a pass 5 to 10 us, and there are about fifteen
passes for a row with top_k and top_p, two for a greedy one; rows go side by side. Not yet run on a GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
import triton
from torch import Tensor

from slipstream.kernels.benchmark.benchmark_case import Case
from slipstream.kernels.sampling.gpu.sampling_kernels import add_kernel, penalise_kernel, sample_kernel

GREEDY_BELOW = 1e-5  # as in `workers.engine.plan`: colder than this is greedy
BLOCK = 1024  # tokens a pass takes at once, against eight thresholds
SCAN = 4096  # likewise without thresholds: 16 KB on their way, as one after the other waits for the L2


@dataclass(frozen=True, slots=True)
class Draws:
    """How each row is drawn, on the logits' device. A row with a temperature under `GREEDY_BELOW` is greedy."""

    temperature: Tensor  # [rows] float32
    log_min_p: Tensor  # [rows] float32, -inf: off
    top_k: Tensor  # [rows] int32, the vocabulary's size: off
    top_p: Tensor  # [rows] float64, 1: off
    uniforms: Tensor  # [rows] float64 in [0, 1)


@dataclass(frozen=True, slots=True)
class Updates:
    """Changes to single scores, on the logits' device: entries sorted as they come, no (row, id) twice."""

    rows: Tensor  # [n] int32
    token_ids: Tensor  # [n] int32
    values: Tensor  # [n] float32: the bias, the count in the output for penalties, -inf for masks


@dataclass(frozen=True, slots=True)
class Penalties:
    """Of the tokens that `counts` lists with their counts in the output (0: only in the prompt)."""

    counts: Updates
    repetition: Tensor  # [rows] float32
    frequency: Tensor  # [rows] float32
    presence: Tensor  # [rows] float32


def sample(logits: Tensor, draws: Draws | None) -> tuple[Tensor, Tensor]:
    """Token ids [rows] int32 and whether each is sound [rows] bool, of `logits` [rows, vocab] float32 with dense rows,
    which stay as they are. `draws` None: all are greedy. Raises ValueError.

    A row is not sound where its highest score is no finite number, or any is nan; its token means nothing then.
    """
    _check_logits(logits)
    num_rows, vocab_size = logits.shape
    token_ids = torch.empty(num_rows, dtype=torch.int32, device=logits.device)
    sound = torch.empty(num_rows, dtype=torch.int8, device=logits.device)
    if draws is not None:
        for name, tensor, dtype in (
            ("temperature", draws.temperature, torch.float32),
            ("log_min_p", draws.log_min_p, torch.float32),
            ("top_k", draws.top_k, torch.int32),
            ("top_p", draws.top_p, torch.float64),
            ("uniforms", draws.uniforms, torch.float64),
        ):
            _check_vector(f"draws.{name}", tensor, num_rows, dtype)
    if num_rows:
        ignored = logits
        sample_kernel[(num_rows,)](
            logits,
            token_ids,
            sound,
            *(
                (ignored,) * 5
                if draws is None
                else (draws.temperature, draws.log_min_p, draws.top_k, draws.top_p, draws.uniforms)
            ),
            vocab_size,
            logits.stride(0),
            GREEDY=draws is None,
            GREEDY_BELOW=GREEDY_BELOW,
            SCAN=min(SCAN, triton.next_power_of_2(vocab_size)),
            BLOCK=min(BLOCK, triton.next_power_of_2(vocab_size)),
            num_warps=16,
        )
    return token_ids, sound.view(torch.bool)


def penalise(logits: Tensor, penalties: Penalties) -> None:
    """Changes `logits` [rows, vocab] in place: positive scores divided by `repetition`, others multiplied; less
    `frequency` times the count, less `presence` where there is any. Raises ValueError."""
    _check_logits(logits)
    _check_updates("penalties.counts", penalties.counts)
    for name, tensor in (
        ("repetition", penalties.repetition),
        ("frequency", penalties.frequency),
        ("presence", penalties.presence),
    ):
        _check_vector(f"penalties.{name}", tensor, len(logits), torch.float32)
    counts = penalties.counts
    num_entries = len(counts.rows)
    if num_entries:
        penalise_kernel[(triton.cdiv(num_entries, 256),)](
            logits,
            counts.rows,
            counts.token_ids,
            counts.values,
            penalties.repetition,
            penalties.frequency,
            penalties.presence,
            logits.stride(0),
            num_entries,
            BLOCK=256,
            num_warps=4,
        )


def add_scores(logits: Tensor, updates: Updates) -> None:
    """Adds to single scores of `logits` [rows, vocab] in place; -inf masks a token. Raises ValueError."""
    _check_logits(logits)
    _check_updates("updates", updates)
    num_entries = len(updates.rows)
    if num_entries:
        add_kernel[(triton.cdiv(num_entries, 256),)](
            logits,
            updates.rows,
            updates.token_ids,
            updates.values,
            logits.stride(0),
            num_entries,
            BLOCK=256,
            num_warps=4,
        )


def sample_reference(logits: Tensor, draws: Draws) -> Tensor:
    """Token ids [rows] by the definition: sort, cut, cumulate, all in float64 but the scores."""
    tokens = []
    for i, row in enumerate(logits):
        if draws.temperature[i] < GREEDY_BELOW:
            tokens.append(int(row.argmax()))
            continue
        x = (row - row.max()) / draws.temperature[i]
        weights = torch.where(x >= draws.log_min_p[i], x.exp(), 0.0).double()
        order = x.sort(descending=True, stable=True).indices
        kept = weights[order] * (torch.arange(len(row), device=row.device) < draws.top_k[i])
        before = kept.cumsum(0) - kept
        kept *= (before < draws.top_p[i] * kept.sum()) | (torch.arange(len(row), device=row.device) == 0)
        by_id = torch.zeros_like(kept).index_put_((order,), kept)
        cumulated = by_id.cumsum(0)
        tokens.append(int((cumulated > draws.uniforms[i] * cumulated[-1]).int().argmax()))
    return torch.tensor(tokens, device=logits.device)


def _check_logits(logits: Tensor) -> None:
    if logits.dim() != 2 or logits.dtype != torch.float32 or logits.stride(1) != 1 or not logits.shape[1]:
        raise ValueError(
            f"logits must be float32 [rows, vocab] with dense rows, got {list(logits.shape)} {logits.dtype}"
        )


def _check_vector(name: str, tensor: Tensor, size: int, dtype: torch.dtype) -> None:
    if tensor.shape != (size,) or tensor.dtype != dtype or not tensor.is_contiguous():
        raise ValueError(f"{name} must be contiguous {dtype} [{size}], got {list(tensor.shape)} {tensor.dtype}")


def _check_updates(name: str, updates: Updates) -> None:
    size = updates.rows.numel()
    _check_vector(f"{name}.rows", updates.rows, size, torch.int32)
    _check_vector(f"{name}.token_ids", updates.token_ids, size, torch.int32)
    _check_vector(f"{name}.values", updates.values, size, torch.float32)


def benchmark_cases() -> tuple[Case, ...]:
    """Llama 3's vocabulary; the logits have just been written and lie in the L2, so there are no sets to rotate."""
    return tuple(
        Case(
            name=f"sample {label} {num_rows} x 128256",
            setup=partial(_call, num_rows, top_k, top_p),
            num_bytes=num_rows * 128256 * 4,
        )
        for num_rows in (1, 64)
        for label, top_k, top_p in (("greedy", 0, 0.0), ("temperature", 128256, 1.0), ("top_k 50 top_p 0.9", 50, 0.9))
    )


def _call(num_rows: int, top_k: int, top_p: float, device: torch.device) -> Callable[[], object]:
    logits = torch.randn(num_rows, 128256, device=device) * 3
    if not top_k:
        return partial(sample, logits, None)
    draws = Draws(
        torch.full((num_rows,), 0.8, device=device),
        torch.full((num_rows,), float("-inf"), device=device),
        torch.full((num_rows,), top_k, dtype=torch.int32, device=device),
        torch.full((num_rows,), top_p, dtype=torch.float64, device=device),
        torch.rand(num_rows, dtype=torch.float64, device=device),
    )
    return partial(sample, logits, draws)
