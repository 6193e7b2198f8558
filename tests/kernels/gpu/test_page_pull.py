"""Pages of one pool in another, for runs of layers and heads, against indexing in torch."""

from __future__ import annotations

import pytest
import torch

from slipstream.kernels.pages.gpu.page_pull import pull_pages


@pytest.mark.parametrize(
    ("layers", "source_heads", "heads"),
    [(range(3), range(4), range(4)), (range(1, 3), range(2, 4), range(2)), (range(2, 3), range(1), range(3, 4))],
    ids=str,
)
@pytest.mark.parametrize("run", [(2, 16, 65), (2, 3, 1)], ids=str)  # more than one block of words a head; odd bytes
def test_exactly_the_wanted_heads_of_the_wanted_pages_arrive(
    device: torch.device, layers: range, source_heads: range, heads: range, run: tuple[int, ...]
) -> None:
    torch.manual_seed(0)
    source = torch.randint(0, 100, (3, 5, 4, *run), dtype=torch.uint8, device=device)
    pool = torch.full((3, 9, 4, *run), 200, dtype=torch.uint8, device=device)
    source_ids = torch.tensor([4, 0, 2], device=device)
    page_ids = torch.tensor([1, 8, 3], dtype=torch.int32, device=device)
    expected = pool.clone()
    for layer in layers:
        for source_page, page in zip(source_ids.tolist(), page_ids.tolist(), strict=True):
            expected[layer, page, heads.start : heads.stop] = source[
                layer, source_page, source_heads.start : source_heads.stop
            ]
    pull_pages(source, source_ids, pool, page_ids, layers=layers, source_heads=source_heads, heads=heads)
    assert torch.equal(pool, expected)


def test_pools_that_do_not_fit_together_are_refused(device: torch.device) -> None:
    source, pool = torch.zeros(2, 4, 2, 16, device=device), torch.zeros(2, 4, 2, 8, device=device)
    ids = torch.tensor([1], device=device)
    with pytest.raises(ValueError, match="heads of 64 bytes"):
        pull_pages(source, ids, pool, ids, layers=range(2), source_heads=range(2), heads=range(2))
    with pytest.raises(ValueError, match="source_heads"):
        pull_pages(source, ids, source, ids, layers=range(2), source_heads=range(2), heads=range(1))
    with pytest.raises(ValueError, match="layers must be"):
        pull_pages(source, ids, source, ids, layers=range(3), source_heads=range(2), heads=range(2))
