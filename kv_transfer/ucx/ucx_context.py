"""UCX's contexts and the workers made in them: which transports may carry messages, and which settings UCX gets.

- UCX uses shared memory for links with error handling only with POSIX_ERROR_HANDLING=y; otherwise it falls back to TCP,
  which is five times slower within one host.
- Creating a worker with less than 16 MiB left in /dev/shm crashes the process (UCX then takes ordinary memory, and
  later misses its handle). So the free space is checked before, and if there is too little, the link does without
  shared memory.
- Loading UCX patches libc's functions for mapping memory, so that registrations of memory that goes away are dropped.
  That takes 0.4 s of a core. `open_transport` has it left out where the processor moves all bytes.
- Running out of file descriptors at a certain point of creating a worker ends the process as well ("failed to set
  active message handler"). So it is checked before whether there are enough.
"""

from __future__ import annotations

import logging
import os
import re
from typing import Any

from ucxx._lib import libucxx

from slipstream.kv_transfer.api.transfer_config import SHM_TRANSPORTS, only_copies
from slipstream.kv_transfer.api.transport import TransportError
from slipstream.kv_transfer.ucx.ucx_link import SEGMENT_BYTES

log = logging.getLogger(__name__)

SHM_DIR = "/dev/shm"
MIN_SHM_BYTES = 32 << 20  # UCX's 16 MiB, plus what other processes may take while a worker is made
MIN_FREE_FILES = 32  # a worker takes about ten, its endpoint a few more, and other threads open files meanwhile


class UcxContexts:
    """The contexts; `tls` is UCX_TLS. Raises TransportError."""

    def __init__(self, tls: str) -> None:
        self._tls = tls
        self._context = _open_context(tls)
        self._context_without_shm: Any = None  # made when it is needed

    @property
    def only_copy(self) -> bool:
        """Whether the processor moves all bytes, so that it may as well gather them."""
        return only_copies(self._tls)

    def make_worker(self) -> Any:
        """A worker for a link. Raises TransportError if there is not enough memory or not enough file descriptors."""
        _require_files()
        context = self._for_link()
        try:
            worker = libucxx.UCXWorker(context)
            worker.init_blocking_progress_mode()
        except (libucxx.UCXError, RuntimeError) as error:
            raise TransportError(f"UCX cannot make a worker: {error}") from error
        return worker

    def _for_link(self) -> Any:
        without_shm = _without_shm(self._tls)
        free_bytes = _free_bytes(SHM_DIR)
        if without_shm == self._tls or free_bytes >= MIN_SHM_BYTES:
            return self._context
        shortage = f"{free_bytes >> 20} MiB are left in {SHM_DIR}, {MIN_SHM_BYTES >> 20} are needed"
        if without_shm in ("", "self"):
            raise TransportError(f"{shortage}, and TLS={self._tls!r} names no other way to a peer")
        log.warning("%s: a link goes without shared memory, which is slower", shortage)
        if self._context_without_shm is None:
            self._context_without_shm = _open_context(without_shm)
        return self._context_without_shm


def _open_context(tls: str) -> Any:
    """Opens a context. Raises TransportError."""
    options = {
        "TLS": tls,
        "POSIX_ERROR_HANDLING": "y",
        "POSIX_FIFO_SIZE": "128",  # lets one end continue while the other is not scheduled
        "POSIX_SEG_SIZE": str(SEGMENT_BYTES),
        # 12 MiB of segments from the start: 128 for the FIFO, 256 for the window of a link (`ucx_link`), and the one
        # that UCX has ready for what comes next. When it wants more it crashes if /dev/shm is full, and when it may not
        # have more (RX_MAX_BUFS) messages stay where they are.
        "POSIX_RX_BUFS_GROW": "385",
        "WARN_UNUSED_ENV_VARS": "n",
    }
    if _names_no_device(tls):
        options["RNDV_THRESH"] = "intra:inf,inter:auto"
    features = (libucxx.Feature.TAG, libucxx.Feature.WAKEUP)
    try:
        context = libucxx.UCXContext(options, feature_flags=features)
    except (libucxx.UCXError, RuntimeError) as error:
        raise TransportError(f"UCX with TLS={tls!r} does not start: {error}") from error
    if _asks_for_cuda(tls) and not re.search(r"\bcuda_\w+/", context.info):  # lists what it uses, as "cuda_ipc/cuda"
        raise TransportError(
            f"UCX with TLS={tls!r} finds no GPU, and would take memory of one for the host's and crash: "
            f"UCX_LOG_LEVEL=debug shows what its CUDA part misses"
        )
    return context


def _names_no_device(tls: str) -> bool:
    """Whether `tls` names no transport for device memory, which eager messages would copy through the host."""
    return not tls.startswith("^") and "cuda" not in tls and "all" not in tls.split(",")


def _asks_for_cuda(tls: str) -> bool:
    return not tls.startswith("^") and any(name.startswith("cuda") for name in tls.split(","))


def _without_shm(tls: str) -> str:
    """`tls` without the transports that need shared memory in /dev/shm; `tls` itself if it has none."""
    names = tls.removeprefix("^").split(",")
    if tls.startswith("^"):
        return f"{tls},posix" if SHM_TRANSPORTS.isdisjoint(names) else tls
    if "all" in names:
        return "^posix"
    return ",".join(name for name in names if name not in SHM_TRANSPORTS)


def _require_files() -> None:
    opened: list[int] = []
    try:
        while len(opened) < MIN_FREE_FILES:
            opened.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
    except OSError as error:
        raise TransportError(f"{error.strerror}: {MIN_FREE_FILES} are needed for a link") from error
    finally:
        for fd in opened:
            os.close(fd)


def _free_bytes(folder: str) -> int:
    try:
        found = os.statvfs(folder)
    except FileNotFoundError:
        return 0
    return found.f_bavail * found.f_frsize
