"""A worker: the leader (rank 0) of a group that serves one copy of a model in one role."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeVar

import uvloop

from slipstream.kv_transfer.api.ticket import PeerId, TransferAddress
from slipstream.kv_transfer.api.transport import TransportError
from slipstream.kv_transfer.transports.staging import StagingError
from slipstream.router.model_files.cache.version_files import version_files
from slipstream.router.model_files.file_digest import FilesChanged
from slipstream.router.model_files.sources.weights_source import SourceError
from slipstream.router.protocol.messages import (
    Hello,
    StepTime,
)
from slipstream.router.protocol.messages import Role as RoleName
from slipstream.workers.config.worker_config import WorkerConfig
from slipstream.workers.engine.engine_builder import build_engine
from slipstream.workers.engine.limits.engine_errors import EngineConfigError
from slipstream.workers.engine.native_engine import NativeEngine
from slipstream.workers.engine.processors.registered_processors import LogitsProcessors
from slipstream.workers.engine.structured_output.grammars import GrammarCompiler
from slipstream.workers.engine_loop import EngineEvent, EngineLoop, GrammarReady, GroupBroken, Stop, TransferEnded
from slipstream.workers.group.group_executor import (
    GroupAddress,
    GroupExecutor,
    GroupPages,
    GroupRendezvous,
    RemoteRank,
    join_process_group,
    leave_process_group,
)
from slipstream.workers.group.rank_parts import RankParts, rank_parts
from slipstream.workers.models.directory.json_keys import ModelError
from slipstream.workers.models.interface.tensor_parallel import TensorParallel
from slipstream.workers.process.compute_thread import ComputeThread
from slipstream.workers.process.inbox import Inbox
from slipstream.workers.process.memory_release import release_memory
from slipstream.workers.process.watchdog import Watchdog
from slipstream.workers.roles.worker_protocol import WorkerProtocol
from slipstream.workers.router_link import RouterLink
from slipstream.workers.telemetry.engine_build import build_of, expert_rows
from slipstream.workers.telemetry.expert_load import expert_load
from slipstream.workers.telemetry.rank_usage import GroupUsage, RankUsageSampler
from slipstream.workers.telemetry.reporter import Reporter
from slipstream.workers.telemetry.stats_collector import StatsCollector
from slipstream.workers.telemetry.step_timer import time_steps
from slipstream.workers.telemetry.step_times import StepSampler
from slipstream.workers.telemetry.tracing.attempt_traces import AttemptTraces
from slipstream.workers.telemetry.worker_report import WorkerFailed, WorkerReport
from slipstream.workers.transfers.group_transfers import GroupTransfers, RankOutcome
from slipstream.workers.transfers.ticket_issuer import TicketIssuer
from slipstream.workers.worker_greeting import WorkerGreeting

# Errors that say, in one sentence, what is wrong with the settings, the model or the machine.
SETUP_ERRORS = (ModelError, SourceError, FilesChanged, EngineConfigError, StagingError, TransportError)
INBOX_LIMIT = 65_536
BROKEN_TIMEOUT_S = 0.5
END_TIMEOUT_S = 5.0  # for an engine thread that may be stuck in a collective with a dead rank

log = logging.getLogger(__name__)

T = TypeVar("T")


class Worker:
    """Rank 0 of a worker group: engine, transfer agent, router connection, and the control links to the other ranks.

    A host (a Ray actor or `python -m slipstream.workers.main`) uses it like this:

        worker = Worker(config)             cheap
        address = worker.prepare()          binds the group's ports; GroupAddress, or None if config.tp == 1
        ... start RankWorker(config, rank, address) in its own process for rank 1 .. tp-1 ...
        worker.run()                        blocks in the calling thread until drained, stopped or failed

    `run` returns normally after a drain or a stop and raises `WorkerFailed` otherwise. After a failure or a stop the
    process should end: an actor host calls `os._exit` or returns from main. After a drain it may go on as another
    worker, of another model: `Worker(config, worker.report())`, which frees the memory of the one before. Everything
    else may be called from any thread at any time.

    Threads: the thread that calls `run` has the asyncio loop with the router connection and the watchdog. The engine
    thread loads the model. Then, for each role that is served in turn, it starts a compute thread (see
    `ComputeThread`), which owns engine, role and transfers, and waits for it. The transfer agent has a thread of its
    own, and for each other rank there is one that reads its control link.
    """

    def __init__(self, config: WorkerConfig, predecessor: WorkerReport | None = None) -> None:
        """`predecessor`: the last report of the worker that this process was until now, if it was one."""
        self._config = config
        self._has_predecessor = predecessor is not None
        self._inbox: Inbox[EngineEvent] = Inbox(INBOX_LIMIT)
        self._rendezvous: GroupRendezvous | None = None
        self._usage = GroupUsage()
        self._reporter = Reporter(config.name, config.role, () if predecessor is None else predecessor.startup_s)
        self._lock = threading.Lock()  # guards the fields below; while it is held, `_loop` is open or None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._end: asyncio.Future[None] | None = None
        self._link: RouterLink | None = None
        self._compute_thread: threading.Thread | None = None
        self._broken = threading.Event()
        self._broken_reason = ""
        self._router = (config.router_host, config.router_port)

    def prepare(self) -> GroupAddress | None:
        """Binds the ports where the other ranks meet this one. Idempotent. Raises OSError if `host` is not ours."""
        if self._config.tp == 1:
            return None
        if self._rendezvous is None:
            self._rendezvous = GroupRendezvous(self._config.host, self._config.tp)
        return self._rendezvous.address

    def run(self) -> None:
        """Loads, connects and serves. Raises WorkerFailed if the model cannot be loaded, a rank dies, the engine
        breaks, or the router rejects the worker."""
        self.prepare()
        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(self._serve())
        except WorkerFailed as error:
            self._reporter.show("failed", str(error))
            raise
        self._reporter.show("stopped", "")

    def stop(self, *, drain: bool = True) -> None:
        """Asks `run` to return: once what is running has finished (within `config.drain_s`) or, without `drain`, at
        once. A worker that is still loading always ends at once."""
        self._inbox.put_always(Stop(drain, self._config.drain_s))
        with self._lock:
            if self._loop is not None and self._reporter.is_loading:
                self._loop.call_soon_threadsafe(self._finish, None)

    def redirect(self, host: str, port: int) -> None:
        """The router listens elsewhere from now on; takes effect at the next (re)connection."""
        with self._lock:
            self._router = (host, port)
            if self._loop is not None and self._link is not None:
                self._loop.call_soon_threadsafe(self._link.redirect, host, port)

    def report(self) -> WorkerReport:
        """Never blocks; cheap enough to poll."""
        return self._reporter.report

    async def _serve(self) -> None:
        loop = asyncio.get_running_loop()
        engine_done = loop.create_future()
        with self._lock:
            self._loop = loop
            self._end = loop.create_future()
            link = self._link = RouterLink(loop, *self._router, self._inbox, self._finish, self._config.router_tls)
        thread = threading.Thread(target=self._engine_main, args=(link, engine_done), name="engine", daemon=True)
        thread.start()
        watchdog = Watchdog(loop, lambda: self._inbox.turn, self._config.stall_s, self._stuck)
        try:
            await self._end
        finally:
            watchdog.close()
            self._inbox.put_always(Stop(drain=False, within_s=0.0))
            await asyncio.wait([engine_done], timeout=0 if self._reporter.is_loading else END_TIMEOUT_S)
            await link.close()
            with self._lock:
                self._loop = self._link = None

    def _stuck(self) -> None:
        """Ends a worker whose engine is stuck, after logging where."""
        thread = self._compute_thread
        frame = sys._current_frames().get(thread.ident or 0) if thread is not None else None
        stack = "".join(traceback.format_stack(frame)) if frame is not None else "(it has ended)\n"
        log.error("%s: the engine thread is stuck:\n%s", self._config.name, stack)
        self._finish(WorkerFailed(f"the engine has been stuck in one step for {self._config.stall_s:g} s"))

    def _finish(self, error: WorkerFailed | None) -> None:
        """Makes `run` end. The first reason counts."""
        assert self._end is not None
        if self._end.done():
            return
        if error is None:
            self._end.set_result(None)
        else:
            self._end.set_exception(error)

    def _engine_main(self, link: RouterLink, done: asyncio.Future[None]) -> None:
        """The one place where whatever goes wrong on the engine thread becomes the end of the worker."""
        loop = done.get_loop()
        error: WorkerFailed | None = None
        try:
            self._live(link)
        except WorkerFailed as failure:
            # If a collective fails because a rank has died, its error does not say which; the control link does.
            by_rank = self._config.tp > 1 and self._broken.wait(BROKEN_TIMEOUT_S)
            error = WorkerFailed(self._broken_reason) if by_rank else failure
        except SETUP_ERRORS as failure:
            error = WorkerFailed(str(failure))
        except BaseException as failure:
            # Code of a model's own may leave by sys.exit, which would end this thread alone.
            log.exception("%s could not start", self._config.name)
            error = WorkerFailed(f"{type(failure).__name__}: {failure}")
        with contextlib.suppress(RuntimeError):  # the loop is closed, because `run` did not wait for us
            loop.call_soon_threadsafe(self._finish, error)
            loop.call_soon_threadsafe(_resolve, done)

    def _live(self, link: RouterLink) -> None:
        """The whole life of a worker, top-down: gather the ranks, load, warm up, serve one role after the other."""
        config = self._config
        if self._has_predecessor:
            self._reporter.show("freeing", "the memory of the model before")
            release_memory()
        with contextlib.ExitStack() as stack:
            processors = LogitsProcessors.load(config.engine.logits_processors)
            ranks = self._gather(stack)
            tp = TensorParallel()
            if self._rendezvous is not None:
                tp = join_process_group(self._rendezvous.store, 0, config.tp, config.engine, config.host)
            fetching = version_files(Path(config.model_dir), config.manifest, partial(self._reporter.show, "fetching"))
            config = replace(config, model_dir=str(stack.enter_context(fetching)))
            self._reporter.show("loading", config.model_dir)
            parts = stack.enter_context(rank_parts(config, tp, lambda outcome: self._transfer_ended(0, outcome)))
            addresses = self._await_ranks(ranks, parts)
            transfers = GroupTransfers([parts.agent, *ranks])
            tickets = parts.ticket_issuer(self._last_epoch(), addresses, config.transfer.slab_pages)
            self._reporter.show("warming_up", "generating the first tokens, timing steps")
            greeting = WorkerGreeting(config, build_of(parts.runner), parts.page_layout(tickets), tickets.addresses)
            pages = GroupPages(parts.memory, ranks) if parts.is_elastic else None
            build = partial(self._warm_engine, parts, GroupExecutor(parts.runner, ranks, transfers), pages, processors)
            engine, profile = self._compute(build, config.role, parts)
            rows = expert_rows(parts.runner.model)
            load = expert_load(rows, config.tp, expert_parallel=config.engine.expert_parallel)
            stack.enter_context(RankUsageSampler(0, parts.runner.kv.device, self._usage.take))
            stats = StatsCollector(engine, transfers, expert_load=load, usage=self._usage)
            steps = StepSampler(profile)
            serving: RoleName | None = config.role
            while serving is not None:
                work = partial(self._serve_role, serving, engine, transfers, stats, steps, tickets, link, greeting)
                serving = self._compute(work, serving, parts)
                if serving is not None:
                    for rank in ranks:
                        rank.serve_as(serving)
                    engine.change_limits(parts.limits_in_role(config, serving))
            if config.tp > 1:
                leave_process_group()

    def _compute(self, work: Callable[[], T], role: RoleName, parts: RankParts) -> T:
        """Runs `work` on a compute thread of this role."""
        thread = ComputeThread(work, self._config.in_role(role), role, parts.runner.kv.device)
        self._compute_thread = thread.thread
        return thread.result()

    def _warm_engine(
        self, parts: RankParts, executor: GroupExecutor, pages: GroupPages | None, processors: LogitsProcessors
    ) -> tuple[NativeEngine, Sequence[StepTime]]:
        """An engine that has generated tokens, and how long its steps take. If its pool is elastic, with these `pages`,
        it has not touched more pages for that than one sequence can need, and has no page now."""
        limits = parts.limits
        eos_ids = [token_id for token_id in limits.eos_token_ids if token_id < limits.vocab_size]
        grammars = GrammarCompiler(
            parts.files.model_dir,
            limits.vocab_size,
            eos_ids,
            on_ready=lambda: self._inbox.put_always(GrammarReady()),
            manifest=parts.files.manifest,
        )
        engine = build_engine(limits, executor, grammars, pages, processors)
        profile = time_steps(limits if pages is None else limits.of_one_sequence, executor)
        engine.learn_step_times(profile)
        if pages is not None:
            engine.set_page_limit(0)
            while engine.has_work:
                engine.step()
        # What is loaded stays. Without this, the garbage collector would scan all of torch every now and then.
        gc.collect()
        gc.freeze()
        return engine, profile

    def _serve_role(
        self,
        name: RoleName,
        engine: NativeEngine,
        transfers: GroupTransfers,
        stats: StatsCollector,
        steps: StepSampler,
        tickets: TicketIssuer,
        link: RouterLink,
        greeting: WorkerGreeting,
    ) -> RoleName | None:
        """Serves one role to its end. Returns the role to serve next, None if the worker ends."""
        self._reporter.serves_as(name)
        config = self._config

        def hello(worker: PeerId) -> Hello:
            self._reporter.connects_in(worker.epoch)
            return greeting.hello(worker, name, engine)

        protocol = WorkerProtocol.in_role(
            name, engine, transfers, tickets, config.transfer.lease_s, stats, config.drain_s
        )
        return EngineLoop(
            engine=engine,
            protocol=protocol,
            transfers=transfers,
            steps=steps,
            traces=AttemptTraces(config.transfer.transport),
            inbox=self._inbox,
            router=link,
            tickets=tickets,
            hello=hello,
            show=self._reporter.show,
        ).run()

    def _gather(self, stack: contextlib.ExitStack) -> list[RemoteRank]:
        if self._rendezvous is None:
            return []
        self._reporter.show("gathering", f"waiting for {self._config.tp - 1} ranks")
        ranks = self._rendezvous.gather()
        for rank in ranks:
            stack.callback(rank.close)
            rank.listen(self._transfer_ended, self._usage.take, self._group_broken)
        return ranks

    def _await_ranks(self, ranks: list[RemoteRank], parts: RankParts) -> tuple[TransferAddress, ...]:
        addresses = [parts.agent.address]
        for rank in ranks:
            ready = rank.wait_until_ready()
            if ready.num_pages != parts.limits.num_pages:
                raise WorkerFailed(f"rank {rank.rank} has {ready.num_pages} pages, rank 0 has {parts.limits.num_pages}")
            addresses.append(ready.address)
        return tuple(addresses)

    def _last_epoch(self) -> PeerId:
        """The epoch before the first. Epochs follow the wall clock, in milliseconds, so a restarted worker has a later
        one although the last is not remembered."""
        return PeerId(self._config.name, time.time_ns() // 1_000_000)

    def _transfer_ended(self, rank: int, outcome: RankOutcome) -> None:
        self._inbox.put_always(TransferEnded(rank, outcome))

    def _group_broken(self, reason: str) -> None:
        """A rank is broken. The engine thread gets an event; if it is stuck in a collective, `run` ends without it. The
        first rank that breaks is the cause, and others break because of it."""
        with self._lock:
            self._broken_reason = self._broken_reason or reason
        self._broken.set()
        self._inbox.put_always(GroupBroken(reason))
        with self._lock:
            if (loop := self._loop) is not None:
                loop.call_soon_threadsafe(loop.call_later, END_TIMEOUT_S, self._finish, WorkerFailed(reason))


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
