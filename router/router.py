"""The router process: HTTP front, dispatcher and worker port on one event loop, or fronts in processes of their own."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

from slipstream.router.access.access import Access
from slipstream.router.addresses import Addresses, Endpoint
from slipstream.router.canary import Canary
from slipstream.router.config import DispatchConfig, RouterConfig, TlsConfig, TracingConfig
from slipstream.router.encoding import encode_pool
from slipstream.router.expected_workers import ExpectedWorkers
from slipstream.router.front import Front
from slipstream.router.fronts.link import FrontLink
from slipstream.router.fronts.messages import DispatcherMessage
from slipstream.router.fronts.pool import FrontPool
from slipstream.router.fronts.setup import FrontSetup, LogStyle
from slipstream.router.fronts.tally import FrontTally
from slipstream.router.http.server import HttpServer
from slipstream.router.messages import Role
from slipstream.router.open_files import allow_all_files
from slipstream.router.service import GenerationService
from slipstream.router.signals import Signals
from slipstream.router.takeover.estate import Estate
from slipstream.router.tokenizer import Tokenizer, read_json
from slipstream.router.tracing.tracer import Tracer
from slipstream.router.version_status import VersionStatus

log = logging.getLogger(__name__)

LAST_WORDS_S = 1.0  # for streams that are cut off to say so


class Router:
    """Life cycle: `start`, `drain` (optional), `stop`, all on the loop that `start` ran on.

    `model_dir` is needed for its tokenizer and chat template only; how long sequences may be, the workers say.
    `worker_token` is the secret that workers show. With `has_prefill_pool` the router is ready only after a request
    has gone over a prefill group; without it, a prefill group is used by that first request if it is there. At a
    `keeper` it leaves its clients' connections to the next router, and `take_over`s those of the one before.
    """

    def __init__(
        self,
        config: RouterConfig,
        model_name: str,
        model_dir: Path | str,
        worker_token: str,
        *,
        has_prefill_pool: bool = False,
        keeper: Path | None = None,
    ) -> None:
        self._config = config
        self._model_name = model_name
        self._model_dir = Path(model_dir)
        self._worker_token = worker_token
        self._keeper = keeper
        self._expected = ExpectedWorkers(num_prefill=int(has_prefill_pool))
        self._asleep_since: int | None = None  # how often decode workers had joined then
        self._model_positions: int | None = None  # the longest sequence that the model allows, if it says so
        self._has_been_ready = False
        self._cleanup = AsyncExitStack()
        self._is_draining = False
        self._service: GenerationService
        self._server: HttpServer | FrontPool
        self._admin_server: HttpServer | None = None
        self._canary: Canary
        self._front: Front

    async def start(self) -> Addresses:
        """Listen for clients and workers. Returns where, with ports chosen by the system filled in.

        Raises FileNotFoundError or ValueError if the model directory has no usable tokenizer, ValueError for broken
        files of keys or certificates, OSError if an address or a file cannot be had; then nothing is left running.
        """
        async with AsyncExitStack() as cleanup:
            pool = cleanup.enter_context(encode_pool())
            loop = asyncio.get_running_loop()
            tokenizer = await loop.run_in_executor(pool, Tokenizer.from_directory, self._model_dir, pool)
            self._model_positions = await loop.run_in_executor(pool, model_positions, self._model_dir)
            self._service = GenerationService(self._config, model=self._model_name, token=self._worker_token)
            self._canary = Canary(self._service, self._needs_prefill_group)
            files = cleanup.enter_context(ThreadPoolExecutor(1, thread_name_prefix="access"))
            access = Access(self._config.access, files)
            access.open()
            cleanup.push_async_callback(access.close)
            admin = self._config.admin
            tracer = begin_tracing(self._config.tracing, self._model_name, cleanup)
            front = Front(
                self._model_name,
                tokenizer,
                self._service,
                self._unready_because,
                lambda: self._server.num_connections,
                access,
                has_admin_port=admin.port is not None,
                tracer=tracer,
            )
            self._front = front
            allow_all_files()
            estate = None
            if self._keeper is not None:
                estate = await loop.run_in_executor(pool, Estate.of_keeper, self._keeper)
            if estate is not None and estate.listening and self._model_positions is not None:
                # Clients of the router before are taken until the workers to come are known.
                self._service.expect_max_model_len(self._model_positions)
            self._server = self._serving(front, access, estate)
            await self._service.start(estate)
            cleanup.push_async_callback(self._service.close)
            cleanup.push_async_callback(self._server.stop)  # also if only some of the fronts start
            http_port = await self._server.start()
            admin_at = None
            if admin.port is not None:
                config = replace(self._config.http, host=admin.host, port=admin.port, tls=TlsConfig())
                self._admin_server = HttpServer(config, front.admin)
                admin_at = Endpoint(admin.host, await self._admin_server.start())
                cleanup.push_async_callback(self._admin_server.stop)
            if isinstance(self._server, FrontPool):
                telling = asyncio.create_task(self._tell_limits(self._server))
                cleanup.push_async_callback(cancel_and_wait, telling)
            singing = asyncio.create_task(self._canary.run())
            singing.add_done_callback(log_failure)
            cleanup.push_async_callback(cancel_and_wait, singing)
            self._cleanup = cleanup.pop_all()
        http = Endpoint(self._config.http.host, http_port)
        return Addresses(http, Endpoint(*self._service.worker_address), admin_at)

    def _serving(self, front: Front, access: Access, estate: Estate | None) -> HttpServer | FrontPool:
        """What clients connect to: this process, or several others."""
        if self._config.fronts == 1:
            return HttpServer(self._config.http, front, check_caller=front.check_caller, estate=estate)
        log_style = LogStyle.of_this_process()
        longest, keeper = self._service.max_model_len, self._keeper if estate is not None else None
        setup = FrontSetup(self._config, self._model_name, self._model_dir, longest, log_style, keeper=keeper)

        def link_of(send: Callable[[DispatcherMessage], None]) -> FrontLink:
            tally = FrontTally(front.counts, access.num_unauthenticated, front.trace_counts)
            return FrontLink(self._service, access, tally, front, send)

        return FrontPool(self._config.fronts, setup, link_of, estate)

    async def _tell_limits(self, fronts: FrontPool) -> None:
        while True:
            fronts.tell_limits(self._service.max_model_len, self._service.versions)
            await self._service.wait_for_change()

    async def take_over(self) -> None:
        """Goes on with what the router before has left undone. To be called when the workers to come are known."""
        if isinstance(self._server, FrontPool):
            self._server.tell_limits(self._service.max_model_len, self._service.versions)
        await self._server.take_over()

    def follow(self, config: DispatchConfig) -> None:
        """Takes up other settings of the dispatcher, as far as it can without a new start."""
        self._service.follow(config)

    def set_split(self, split: Mapping[str, float] | None) -> None:
        """Shares of versions of the model in new requests; None: by the size of their pools. Raises ValueError."""
        self._service.set_split(split)

    def signals(self) -> Signals:
        """What a planner decides from."""
        return self._service.signals()

    def versions(self) -> tuple[VersionStatus, ...]:
        """How each version of the model stands."""
        return self._service.version_status

    async def drain(self, deadline_s: float) -> None:
        """Take nothing new and let running answers end, for at most `deadline_s` seconds."""
        self._is_draining = True
        self._service.stop_admission()
        await self._server.drain(deadline_s)

    def expect_workers(self, expected: ExpectedWorkers) -> None:
        """So many workers are wanted. Until the first decode worker connects, requests are taken and wait, also at a
        router that was started anew; where none is wanted, the router is asleep and stays ready till one has come."""
        self._expected = expected
        longest = expected.max_model_len or self._model_positions
        if longest is not None:
            self._service.expect_max_model_len(longest)
        if expected.num_decode == 0:
            self._asleep_since = self._service.num_decode_joins

    def _needs_prefill_group(self) -> bool:
        """Before anybody has had an answer of these workers: later, prefill hosts that are cut off are no reason to
        turn clients away."""
        return self._expected.num_prefill > 0 and not self._expected.has_served

    @property
    def _is_asleep(self) -> bool:
        return self._expected.num_decode == 0 or self._asleep_since == self._service.num_decode_joins

    def status_body(self) -> bytes:
        """How things stand, as JSON: what `/cluster/status` says."""
        return self._front.status_body()

    def drain_worker(self, name: str, next_role: Role | None = None, migrate: bool = True) -> bool:
        """Empties a worker, which then ends or comes back as `next_role`; with `migrate`, what runs there moves to
        others. False if it is not connected."""
        return self._service.drain_worker(name, next_role, migrate)

    async def stop(self) -> None:
        """End what still runs (streams end with an error event) and close everything. Safe to call twice."""
        if not self._is_draining:
            await self.drain(0)
        await self._service.close()
        await self._server.drain(LAST_WORDS_S)
        await self._cleanup.aclose()

    def _unready_because(self) -> str | None:
        if self._is_draining:
            return "the server is shutting down"
        if self._is_asleep:
            self._has_been_ready = True  # and does not go back on it while the first worker shows what it can
            return None
        if self._canary.missing is not None and not self._has_been_ready:
            return self._canary.missing
        if not self._service.is_ready:
            return "no decode worker is connected"
        self._has_been_ready = True
        return None


def model_positions(model_dir: Path) -> int | None:
    """The longest sequence that a model allows, if it says so. Raises ValueError if its config.json is none."""
    longest = read_json(model_dir / "config.json").get("max_position_embeddings")
    return longest if isinstance(longest, int) else None


def begin_tracing(config: TracingConfig, model: str, cleanup: AsyncExitStack) -> Tracer | None:
    """None where no collector is configured. What waits is sent at `cleanup`, within `config.timeout_s`."""
    if config.traces_url is None:
        return None
    # The import takes 60 ms and some MiB, which nobody should pay who has no collector.
    from slipstream.router.tracing.export import OtlpExporter

    exporter = OtlpExporter(config.traces_url, model, queue_traces=config.queue_requests, timeout_s=config.timeout_s)
    exporter.start()
    loop = asyncio.get_running_loop()
    cleanup.push_async_callback(loop.run_in_executor, None, exporter.close, config.timeout_s)
    return Tracer(config.sample_ratio, exporter)


def log_failure(task: asyncio.Task[None]) -> None:
    """Without this nobody would hear why the router never becomes ready."""
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error("the first request ended with a bug", exc_info=error)


async def cancel_and_wait(task: asyncio.Task[None]) -> None:
    """End a task. Raises what it had failed with, if it had."""
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
