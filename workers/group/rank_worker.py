"""A rank other than 0 of a tensor-parallel group."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import logging
import os
import socket
import threading
from datetime import timedelta
from pathlib import Path

from torch.distributed import TCPStore  # type: ignore[attr-defined]

from slipstream.router.model_files.cache.version_files import version_files
from slipstream.router.model_files.file_digest import FilesChanged
from slipstream.router.model_files.sources.weights_source import SourceError
from slipstream.router.protocol.codec import WireError
from slipstream.router.protocol.messages import RankUsage, Role
from slipstream.workers.config.worker_config import WorkerConfig
from slipstream.workers.group.control_link import ControlLink, LinkClosed
from slipstream.workers.group.group_executor import (
    JOIN_TIMEOUT_S,
    GroupAddress,
    join_process_group,
    leave_process_group,
)
from slipstream.workers.group.group_messages import (
    BeginEpoch,
    CancelTransfer,
    Execute,
    Expect,
    ForgetPeer,
    Join,
    RankFailed,
    RankReady,
    ReturnPages,
    SendPages,
    ServeAs,
    Shutdown,
)
from slipstream.workers.group.rank_parts import RankParts, rank_parts
from slipstream.workers.models.directory.json_keys import ModelError
from slipstream.workers.process.compute_thread import ComputeThread
from slipstream.workers.process.memory_release import release_memory
from slipstream.workers.telemetry.rank_usage import RankUsageSampler
from slipstream.workers.telemetry.worker_report import LEADER_GONE, WorkerFailed, WorkerReport, WorkerState
from slipstream.workers.transfers.group_transfers import RankOutcome

LEADER_GONE_GRACE_S = 2.0

log = logging.getLogger(__name__)


class RankWorker:
    """Rank `rank` >= 1: a model runner and a transfer agent, which execute the step plans and commands of rank 0.

    rank_worker = RankWorker(config, rank, address)   # the leader's config; the address that Worker.prepare() returned
    rank_worker.run()                                 # blocks until the leader says so or is gone

    `run` returns when the leader has ended normally and raises `WorkerFailed` otherwise. If the leader dies while this
    rank is busy (loading, or in a collective that does not return), the process exits with code 1 after a moment, so a
    rank never outlives its leader. After a normal end, the process may go on as a rank of another group; that
    `has_predecessor`, whose memory it frees first.
    """

    def __init__(
        self, config: WorkerConfig, rank: int, address: GroupAddress, *, has_predecessor: bool = False
    ) -> None:
        if not 1 <= rank < config.tp:
            raise ValueError(f"rank must be in 1 .. {config.tp - 1}, got {rank}")
        self._config = config
        self._has_predecessor = has_predecessor
        self._rank = rank
        self._address = address
        self._state: WorkerState = "new"
        self._progress = ""
        self._ended = threading.Event()

    def report(self) -> WorkerReport:
        """Never blocks; may be called from any thread."""
        return WorkerReport(self._config.name, self._rank, os.getpid(), self._state, 0, self._progress)

    def run(self) -> None:
        """Runs the rank to its end. Raises WorkerFailed if the model cannot be loaded or the leader is gone."""
        try:
            self._run()
            self._show("stopped", "")
        except BaseException as error:  # code of a model's own may leave by sys.exit
            reason = _reason_of(error)
            self._show("failed", reason)
            raise WorkerFailed(f"rank {self._rank} of {self._config.name}: {reason}") from error
        finally:
            self._ended.set()

    def _run(self) -> None:
        address = self._address
        if self._has_predecessor:
            self._show("freeing", "the memory of the model before")
            release_memory()
        self._show("gathering", f"joining the group at {address.host}:{address.control_port}")
        connection = socket.create_connection((address.host, address.control_port), JOIN_TIMEOUT_S)
        connection.settimeout(None)
        link = ControlLink(connection)
        try:
            link.send(Join(self._rank, address.secret, os.getpid()))
            threading.Thread(target=self._outlive_nobody, args=(link,), name="leader-watch", daemon=True).start()
            with contextlib.ExitStack() as stack:
                parts = self._load(stack, link)
                device = parts.runner.kv.device
                stack.enter_context(RankUsageSampler(self._rank, device, lambda usage: _tell(link, usage)))
                role: Role | None = self._config.role
                while role is not None:
                    role = self._compute_as(role, link, parts)
                leave_process_group()
        except LinkClosed as error:
            raise WorkerFailed(f"{LEADER_GONE}: {error}") from error
        except BaseException as error:
            link.send_last(RankFailed(_reason_of(error)))
            raise
        finally:
            link.close()

    def _load(self, stack: contextlib.ExitStack, link: ControlLink) -> RankParts:
        config, address = self._config, self._address
        store = TCPStore(
            address.host, address.distributed_port, config.tp, is_master=False, timeout=timedelta(seconds=60)
        )
        tp = join_process_group(store, self._rank, config.tp, config.engine, config.host)
        fetching = version_files(Path(config.model_dir), config.manifest, lambda text: None)
        config = dataclasses.replace(config, model_dir=str(stack.enter_context(fetching)))
        self._show("loading", config.model_dir)
        parts = stack.enter_context(rank_parts(config, tp, lambda outcome: _tell(link, outcome)))
        link.send(RankReady(parts.agent.address, parts.limits.num_pages))
        gc.collect()
        gc.freeze()  # as in the leader: a pause for garbage collection would hold up all ranks
        self._show("ready", "")
        return parts

    def _compute_as(self, role: Role, link: ControlLink, parts: RankParts) -> Role | None:
        config = self._config.in_role(role)
        return ComputeThread(lambda: self._serve(link, parts), config, role, parts.runner.kv.device).result()

    def _serve(self, link: ControlLink, parts: RankParts) -> Role | None:
        """Executes commands until the leader ends the group (returns None) or changes its role (returns that)."""
        while True:
            match link.receive():
                case Execute() as execute:
                    parts.runner.execute(execute.plan, ())
                case Expect(ticket, page_ids, source, source_tp):
                    parts.agent.expect(ticket, page_ids, source, source_tp)
                case SendPages(ticket, page_ids):
                    parts.agent.send(ticket, page_ids)
                case CancelTransfer(transfer):
                    parts.agent.cancel(transfer)
                case ForgetPeer(peer):
                    parts.agent.peer_lost(peer)
                case BeginEpoch(worker):
                    parts.agent.begin_epoch(worker)
                case ReturnPages(page_ids):
                    parts.memory.return_pages(page_ids)
                case ServeAs(role):
                    return role
                case Shutdown():
                    return None
                case message:
                    raise WireError(f"the leader said {type(message).__name__}")

    def _outlive_nobody(self, link: ControlLink) -> None:
        link.wait_for_hangup()
        if not self._ended.wait(LEADER_GONE_GRACE_S):
            log.error("the leader of %s is gone; rank %d ends", self._config.name, self._rank)
            os._exit(1)

    def _show(self, state: WorkerState, progress: str) -> None:
        self._state, self._progress = state, progress
        log.info("%s rank %d: %s", self._config.name, self._rank, f"{state} ({progress})" if progress else state)


def _reason_of(error: BaseException) -> str:
    """Errors that are sentences already need no type to be understood."""
    return (
        str(error)
        if isinstance(error, WorkerFailed | FilesChanged | SourceError | ModelError)
        else f"{type(error).__name__}: {error}"
    )


def _tell(link: ControlLink, message: RankOutcome | RankUsage) -> None:
    with contextlib.suppress(LinkClosed):  # the thread that reads the link will notice
        link.send(message)
