"""Processes of tests, forked from one that has imported what they need: dozens of them would each take half a second of
a core for that, and those with torch three times as much."""

from __future__ import annotations

import multiprocessing
from multiprocessing.context import ForkServerContext

# All that any test wants: the first process that is asked for starts the server, with what was named by then.
IMPORTED = ["tests.support.kv_transfer.transfer_process", "slipstream.kv_transfer.nccl.nccl_transport"]


def forked() -> ForkServerContext:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(IMPORTED)
    return context
