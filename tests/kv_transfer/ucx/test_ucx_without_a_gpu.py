"""UCX is asked for GPUs where it finds none."""

from __future__ import annotations

import pytest
import torch

from slipstream.kv_transfer.api.transport import TransportError
from slipstream.kv_transfer.ucx.ucx_context import UcxContexts


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_transport_for_device_memory_is_refused_where_ucx_has_none() -> None:
    """It would only warn, and crash the process with the first page."""
    with pytest.raises(TransportError, match="finds no GPU"):
        UcxContexts("posix,self,tcp,cuda_copy,cuda_ipc")
    assert UcxContexts("posix,self,tcp").only_copy
