"""Pages to a buffer and back, for runs of layers and heads, against indexing in torch."""

from __future__ import annotations

import pytest
import torch

from slipstream.kernels.pages.gpu.page_copy import gather_pages, gather_reference, scatter_pages

SHAPES = [
    (3, 7, 4, 2, 4, 6),  # a pool of numbers
    (2, 5, 2, 3 * 7),  # odd head runs, as bytes
    (1, 4, 4, 2, 16, 65),  # more than one block of words a page
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.uint8], ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("half", [False, True], ids=["whole", "part"])
def test_a_gathered_page_goes_back_where_it_came_from_and_nowhere_else(
    device: torch.device, dtype: torch.dtype, shape: tuple[int, ...], half: bool
) -> None:
    torch.manual_seed(0)
    pool = torch.randint(1, 200, shape, device=device).to(dtype)
    layers = range(shape[0] - 1, shape[0]) if half else range(shape[0])
    heads = range(shape[2] // 2, shape[2]) if half else range(shape[2])
    page_ids = torch.tensor([3, 0, 2], dtype=torch.int32 if half else torch.int64, device=device)
    expected = gather_reference(pool, page_ids, layers=layers, heads=heads)
    buffer = torch.full_like(expected, 255)
    gather_pages(pool, page_ids, buffer, layers=layers, heads=heads)
    assert torch.equal(buffer, expected)

    other = torch.full_like(pool, 77)
    scatter_pages(other, page_ids, buffer, layers=layers, heads=heads)
    untouched = torch.full_like(pool, 77)
    for page in page_ids.tolist():
        part = (slice(layers.start, layers.stop), page, slice(heads.start, heads.stop))
        untouched[part] = pool[part]
    assert torch.equal(other, untouched)


def test_two_halves_of_the_heads_make_the_page_of_a_single_rank(device: torch.device) -> None:
    torch.manual_seed(0)
    halves = [torch.randn(2, 6, 2, 2, 4, 8, device=device) for _ in range(2)]
    whole = torch.randn(2, 9, 4, 2, 4, 8, device=device)
    source_ids, target_ids = torch.tensor([5, 1], device=device), torch.tensor([8, 0], device=device)
    buffer = torch.empty(2, 2, 2, 2, 4, 8, device=device)
    for rank, half in enumerate(halves):
        gather_pages(half, source_ids, buffer, layers=range(2), heads=range(2))
        scatter_pages(whole, target_ids, buffer, layers=range(2), heads=range(2 * rank, 2 * rank + 2))
    assert torch.equal(whole[:, target_ids], torch.cat([half[:, source_ids] for half in halves], dim=2))


def test_what_does_not_fit_together_is_refused(device: torch.device) -> None:
    pool = torch.zeros(2, 4, 2, 2, 4, 8, device=device)
    page_ids, buffer = torch.tensor([1], device=device), torch.zeros(2, 1, 2, 2, 4, 8, device=device)
    with pytest.raises(ValueError, match="heads must be"):
        gather_pages(pool, page_ids, buffer, layers=range(2), heads=range(1, 3))
    with pytest.raises(ValueError, match="layers must be"):
        gather_pages(pool, page_ids, buffer, layers=range(0), heads=range(2))
    with pytest.raises(ValueError, match="buffer must be"):
        scatter_pages(pool, page_ids, buffer[:1], layers=range(2), heads=range(2))
    with pytest.raises(ValueError, match="page_ids must be"):
        scatter_pages(pool, page_ids.float(), buffer, layers=range(2), heads=range(2))
    with pytest.raises(ValueError, match="pool must be"):
        scatter_pages(pool.transpose(0, 1), page_ids, buffer, layers=range(2), heads=range(2))
