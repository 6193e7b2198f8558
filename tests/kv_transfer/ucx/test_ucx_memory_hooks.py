"""Whether UCX patches libc to hear of memory that is given back, which takes each process 0.4 s of a core."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

# Prints whether the code of libc's mmap is another one once the transport is open.
OPEN = """
import ctypes, sys
import numpy as np
from slipstream.kv_transfer.api.transfer_config import TransferConfig
from slipstream.kv_transfer.transports.open_transport import open_page_transport
from slipstream.kv_transfer.memory.host_pages import HostPagePool

def code():
    return ctypes.string_at(ctypes.cast(ctypes.CDLL(None).mmap, ctypes.c_void_p), 16)

before = code()
pool = HostPagePool(np.zeros((1, 2, 1, 64), np.uint8))
open_page_transport(pool, TransferConfig(transport="ucx", tls=sys.argv[1]), "token")
print(code() != before)
"""


def is_patched(tls: str, **settings: str) -> bool:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("UCX_")} | settings
    done = subprocess.run(
        [sys.executable, "-c", OPEN, tls], env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()[-1] == "True"


@pytest.mark.skipif(sys.platform != "linux", reason="UCX is for Linux")
def test_memory_is_watched_only_for_those_that_register_it_and_for_operators_who_ask_for_it() -> None:
    assert not is_patched("posix,self,tcp")
    assert is_patched("all")
    assert is_patched("posix,self,tcp", UCX_MEM_MMAP_HOOK_MODE="bistro")
