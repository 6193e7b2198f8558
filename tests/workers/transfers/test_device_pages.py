"""Pages in device memory look to the transfer agent exactly like pages in host memory."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from slipstream.kv_transfer.memory.host_pages import HostPagePool
from slipstream.workers.transfers.device_pages import DevicePagePool

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
DEVICES = ["cpu", pytest.param("cuda", marks=[pytest.mark.gpu, needs_gpu])]
PAGE_IDS = np.array([5, 0, 11, 7], np.intp)


def pools(device: str, page_tokens: int) -> tuple[DevicePagePool, HostPagePool]:
    """The same random pages behind both."""
    kv = torch.randn(3, 12, 4, 2, page_tokens, 1, generator=torch.manual_seed(0)).to(torch.bfloat16)
    host = kv.view(torch.uint8).flatten(3).numpy().copy()
    return DevicePagePool(kv.to(device)), HostPagePool(host)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("heads", [range(4), range(2, 4), range(3, 4)])
@pytest.mark.parametrize("page_tokens", [16, 3])  # heads of a page: 64 bytes, and 12, which are no whole words
def test_what_is_gathered_and_scattered_is_what_a_pool_in_host_memory_gives(
    device: str, heads: range, page_tokens: int
) -> None:
    here, host = pools(device, page_tokens)
    assert here.geometry == host.geometry
    size = len(PAGE_IDS) * len(heads) * here.geometry.head_bytes
    mine, theirs = np.zeros(size, np.uint8), np.zeros(size, np.uint8)
    for layer in range(3):
        here.layer_done(layer)
        here.gather(layer, PAGE_IDS, heads, mine)
        host.gather(layer, PAGE_IDS, heads, theirs)
        np.testing.assert_array_equal(mine, theirs)
    new = np.random.default_rng(1).integers(0, 256, size).astype(np.uint8)
    here.scatter(1, PAGE_IDS, heads, new)
    host.scatter(1, PAGE_IDS, heads, new)
    everything = np.arange(12, dtype=np.intp)
    all_mine, all_theirs = (np.zeros(12 * here.geometry.page_bytes, np.uint8) for _ in range(2))
    here.gather(1, everything, range(4), all_mine)
    host.gather(1, everything, range(4), all_theirs)
    np.testing.assert_array_equal(all_mine, all_theirs)


def test_heads_that_are_not_there_are_refused() -> None:
    here, _ = pools("cpu", 16)
    with pytest.raises(ValueError, match="not within"):
        here.gather(0, PAGE_IDS, range(1, 5), np.zeros(4 * 4 * 64, np.uint8))
