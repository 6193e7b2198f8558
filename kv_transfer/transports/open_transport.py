"""Opens the transport of a rank according to the settings."""

from __future__ import annotations

import logging
import os
import secrets
from typing import TYPE_CHECKING

from slipstream.kv_transfer.api.page_transport import DevicePool, FaultInjection, PageMover, PageTransport
from slipstream.kv_transfer.api.ticket import TransferAddress
from slipstream.kv_transfer.api.transfer_config import TransferConfig, only_copies
from slipstream.kv_transfer.api.transport import Transport, TransportError
from slipstream.kv_transfer.handoff.message_plan import message_bytes
from slipstream.kv_transfer.memory.host_pages import HostPagePool, TransferPool
from slipstream.kv_transfer.memory.page_stream import native_streams
from slipstream.kv_transfer.memory.row_copy import MIN_BYTES
from slipstream.kv_transfer.shared_memory.shm_link import ShmLink
from slipstream.kv_transfer.shared_memory.shm_transport import ShmTransport
from slipstream.kv_transfer.transports.auto_channel import AutoChannel
from slipstream.kv_transfer.transports.staged import StagedMover
from slipstream.kv_transfer.transports.streamed import StreamedMover
from slipstream.kv_transfer.ucx.ucx_availability import MISSING, has_ucx

if TYPE_CHECKING:
    from slipstream.kv_transfer.ucx.ucx_transport import UcxTransport

GRACE_S = 1.0

log = logging.getLogger(__name__)


def open_page_transport(
    pool: TransferPool, config: TransferConfig, token: str, transport: Transport | None = None
) -> PageTransport:
    """Opens the transport that `config` names, or uses `transport` instead. Raises StagingError, TransportError."""
    fault_injection = FaultInjection(config.corrupt_every)
    if transport is not None:
        return PageTransport.of(transport, _mover(transport, pool, config, fault_injection))
    if config.transport == "shared_memory":
        if not isinstance(pool, HostPagePool):
            raise TransportError("transport shared_memory: the pages of this rank are in device memory")
        return _shared_memory(pool, token, fault_injection)
    if config.transport == "nccl":
        nccl = _nccl(pool, config, token)
        return PageTransport.of(nccl, _mover(nccl, pool, config, fault_injection))
    if not has_ucx():
        if config.transport == "ucx":
            raise TransportError(f"transport ucx: {MISSING}")
        if not isinstance(pool, HostPagePool):
            raise TransportError(f"the pages of this rank are in device memory, which takes UCX; {MISSING}")
        log.warning("%s: pages go through shared memory, which reaches workers of this host only", MISSING)
        return _shared_memory(pool, token, fault_injection)
    if only_copies(config.tls):
        # No memory is registered, so UCX need not hear of any that goes away (see `ucx_context`).
        os.environ.setdefault("UCX_MEM_MMAP_HOOK_MODE", "none")
    # Imported only here, because it loads the native library, which only a rank that opens a transport needs.
    from slipstream.kv_transfer.ucx.ucx_transport import UcxTransport

    ucx = UcxTransport(config.host, config.tls, token, config.peer_timeout_s)
    if not isinstance(pool, HostPagePool):
        return PageTransport.of(ucx, _mover(ucx, pool, config, fault_injection))
    remote = _mover_over_ucx(ucx, pool, config, fault_injection)
    if config.transport == "ucx":
        return PageTransport.of(ucx, remote)
    try:
        shared = ShmTransport(ucx.address, pool, token, fault_injection)
    except TransportError as error:
        log.warning("%s: pages go by UCX", error)
        return PageTransport.of(ucx, remote)
    ucx.wake_for(shared.fileno())
    return PageTransport(
        AutoChannel(shared, ucx), (shared, remote), lambda link: shared if isinstance(link, ShmLink) else remote
    )


def _nccl(pool: TransferPool, config: TransferConfig, token: str) -> Transport:
    # Imported only here, because it imports torch, which takes seconds.
    from slipstream.kv_transfer.nccl.nccl_transport import NcclTransport
    from slipstream.kv_transfer.nccl.pair_group import GroupSettings

    device = str(pool.device) if isinstance(pool, DevicePool) else "cpu"
    # An operation whose peer has stalled ends soon after the lease that it belongs to.
    timeout_s = config.lease_s + GRACE_S
    settings = GroupSettings("gloo" if device == "cpu" else "nccl", device, config.host, timeout_s)
    return NcclTransport(settings, token, config.peer_timeout_s)


def _shared_memory(pool: HostPagePool, token: str, fault_injection: FaultInjection) -> PageTransport:
    address = TransferAddress("this host", secrets.randbelow(1 << 31))
    shared = ShmTransport(address, pool, token, fault_injection)
    return PageTransport.of(shared, shared)


def _mover(
    transport: Transport, pool: TransferPool, config: TransferConfig, fault_injection: FaultInjection
) -> PageMover:
    if isinstance(pool, DevicePool):
        return pool.page_mover(transport, message_bytes(config.slab_pages, pool.geometry), config.staging_mib << 20)
    return _staged(transport, pool, config, fault_injection)


def _mover_over_ucx(
    ucx: UcxTransport, pool: HostPagePool, config: TransferConfig, fault_injection: FaultInjection
) -> PageMover:
    library = native_streams() if pool.geometry.head_bytes >= MIN_BYTES else None
    if library is not None and ucx.takes_streams(library):
        return StreamedMover(ucx, pool, library, fault_injection)
    return _staged(ucx, pool, config, fault_injection)


def _staged(
    transport: Transport, pool: TransferPool, config: TransferConfig, fault_injection: FaultInjection
) -> StagedMover:
    largest = message_bytes(config.slab_pages, pool.geometry)
    return StagedMover(transport, pool, largest, config.staging_mib << 20, fault_injection)
