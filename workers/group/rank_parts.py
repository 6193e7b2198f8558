"""The parts of every rank of a group: a model runner with its KV pool, and the transfer agent that moves its pages."""

from __future__ import annotations

import dataclasses
import logging
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

import torch

from slipstream.kv_transfer.agent import TransferAgent
from slipstream.kv_transfer.api.ticket import HandoffTicket, PeerId, TransferAddress, TransferKey
from slipstream.kv_transfer.api.transfer_events import Received, ReceiveFailed, SendFailed, Sent, TransferEvent
from slipstream.kv_transfer.handoff.message_plan import TicketError
from slipstream.kv_transfer.memory.host_pages import HostPagePool
from slipstream.kv_transfer.memory.pool_memory import PoolMemory
from slipstream.kv_transfer.sockets.link_authentication import PROTOCOL_NAME
from slipstream.router.model_files.file_digest import FilesChanged
from slipstream.router.model_files.manifest import REFUSES
from slipstream.router.process.container_limits import num_cores
from slipstream.router.protocol.block_hash import model_key
from slipstream.router.protocol.messages import PageLayout, Role, unpack_ids
from slipstream.workers.config.worker_config import EngineConfig, WorkerConfig
from slipstream.workers.engine.engine_builder import build_runner, engine_limits, weight_cache_dir
from slipstream.workers.engine.execution.model_runner import ModelRunner
from slipstream.workers.engine.kv_cache.kv_memory import KvMemory
from slipstream.workers.engine.limits.engine_limits import EngineLimits
from slipstream.workers.engine.limits.pool_size import longest_sequence, page_demand
from slipstream.workers.engine.plan.step_plan import PageSend, SendProgress
from slipstream.workers.models.description.describing import RemoteCode
from slipstream.workers.models.directory.model_spec import GeneralSpec, LanguageModelSpec
from slipstream.workers.models.directory.steady_files import SteadyFiles
from slipstream.workers.models.interface.tensor_parallel import TensorParallel
from slipstream.workers.models.spec_reader import read_spec
from slipstream.workers.models.weights.recent_weights import keep_recent
from slipstream.workers.transfers.device_staging import device_page_pool
from slipstream.workers.transfers.group_transfers import RankOutcome
from slipstream.workers.transfers.ticket_issuer import TicketIssuer

log = logging.getLogger(__name__)


class RankAgent:
    """A rank's transfer agent. It takes commands of the group and, from the runner, news of finished pages.

    `memory` holds the runner's pool, if that is on the host. Every transfer that is begun here ends in one
    `RankOutcome`, which is given to `ended` on the agent's thread or, if the ticket does not fit this rank, at once.
    """

    def __init__(
        self,
        runner: ModelRunner,
        memory: PoolMemory | None,
        tp: TensorParallel,
        config: WorkerConfig,
        ended: Callable[[RankOutcome], None],
    ) -> None:
        self._ended = ended
        self._tp = tp
        self._page_dtype = page_dtype(runner)
        # numpy copies rows of host memory at full speed, torch at a tenth of that.
        self._device_pages = device_page_pool(runner.kv, config.transfer) if runner.kv.is_cuda else None
        self._agent = TransferAgent(
            self._device_pages or HostPagePool(runner.page_bytes(), memory),
            rank=tp.rank,
            tp=tp.size,
            peer=PeerId(config.name, 0),
            config=config.transfer,
            on_event=self._on_event,
            token=config.token,
        )

    @property
    def address(self) -> TransferAddress:
        return self._agent.address

    def close(self) -> None:
        self._agent.close()

    def expect(self, ticket: HandoffTicket, page_ids: Sequence[int], source: PeerId, source_tp: int) -> None:
        try:
            self._agent.expect(ticket, page_ids, source, source_tp)
        except TicketError as error:
            self._ended(RankOutcome(ticket.key, str(error)))

    def send(self, ticket: HandoffTicket, page_ids: Sequence[int]) -> None:
        if self._device_pages is not None:
            for layer in range(ticket.num_layers):  # of the steps so far, even if the device has not finished them yet
                self._device_pages.layer_done(layer)
        self._send(ticket, page_ids, ticket.first_page + ticket.num_pages)

    def cancel(self, transfer: TransferKey) -> None:
        self._agent.cancel(transfer)

    def peer_lost(self, peer: PeerId) -> None:
        self._agent.peer_lost(peer)

    def begin_epoch(self, worker: PeerId) -> None:
        self._agent.begin_epoch(worker)

    def begin_sends(self, sends: tuple[PageSend, ...]) -> None:
        for send in sends:
            self._send(send.ticket, unpack_ids(send.page_ids), 0)

    def layer_done(self, layer: int, progress: tuple[SendProgress, ...]) -> None:
        if self._device_pages is not None:
            self._device_pages.layer_done(layer)
        for p in progress:
            key = TransferKey(PeerId(p.destination, p.destination_epoch), p.transfer_id)
            self._agent.pages_ready(key, layer, p.num_pages)

    def _send(self, ticket: HandoffTicket, page_ids: Sequence[int], num_ready_pages: int) -> None:
        if ticket.page_dtype != self._page_dtype:
            reason = f"its pages are to be {ticket.page_dtype}, here they are {self._page_dtype}"
            self._ended(RankOutcome(ticket.key, f"{reason}: kv_cache_dtype and dtype must be the same"))
            return
        try:
            self._agent.send(ticket, page_ids, num_ready_pages)
        except TicketError as error:
            self._ended(RankOutcome(ticket.key, str(error)))

    def _on_event(self, event: TransferEvent) -> None:
        num_mismatches = self._agent.stats().checksum_failures
        match event:
            case Received(key, num_bytes, seconds) | Sent(key, num_bytes, seconds):
                outcome = RankOutcome(key, None, num_bytes, seconds, num_mismatches)
            case ReceiveFailed(key, reason, is_unreachable) | SendFailed(key, reason, is_unreachable):
                outcome = RankOutcome(key, reason, 0, 0.0, num_mismatches, is_unreachable)
        self._ended(outcome)


@dataclasses.dataclass(frozen=True, slots=True)
class RankParts:
    """The parts of one rank. `limits` are those of the role in which the worker starts, `model` describes what
    it has loaded, from `files`. `memory` holds the runner's pool, if that is on the host."""

    limits: EngineLimits
    runner: ModelRunner
    agent: RankAgent
    model: LanguageModelSpec
    files: SteadyFiles
    memory: KvMemory

    @property
    def is_elastic(self) -> bool:
        """Whether the pool's memory can be returned page by page."""
        return self.memory.is_elastic and self.memory.pool is not None

    def limits_in_role(self, config: WorkerConfig, role: Role) -> EngineLimits:
        """The engine's limits in a role, given the pages that it has."""
        if role == config.role:
            return self.limits
        engine, num_pages, holds_prompts = config.in_role(role).engine, self.limits.num_pages, role == "prefill"
        if engine.max_model_len is not None:
            engine = dataclasses.replace(
                engine,
                max_model_len=min(
                    engine.max_model_len,
                    page_demand(self.model, engine, holds_prompts=holds_prompts).most_tokens(
                        num_pages, self.model.max_position_embeddings
                    ),
                ),
            )
        # The files may be others by now.
        longest = longest_sequence(
            self.model, dataclasses.replace(engine, num_pages=num_pages), num_pages, holds_prompts=holds_prompts
        )
        return dataclasses.replace(
            self.limits,
            max_model_len=longest,
            max_num_seqs=engine.most_num_seqs,
            max_step_tokens=engine.most_step_tokens,
            auto_num_seqs=engine.max_num_seqs == "auto",
            auto_step_tokens=engine.max_step_tokens == "auto",
            reserves_output=engine.scheduler_policy == "guaranteed_no_evict",
            max_queued_tokens=config.in_role(role).max_queued_tokens,
            holds_prompts=holds_prompts,
        )

    def page_layout(self, tickets: TicketIssuer) -> PageLayout:
        """What a page is made of, for the greeting: the same as on tickets."""
        return PageLayout(
            num_layers=tickets.num_layers,
            num_kv_heads=tickets.num_kv_heads,
            head_dim=self.runner.model.config.kv.head_dim,
            head_bytes=tickets.head_bytes,
            page_dtype=tickets.page_dtype,
            transfer=PROTOCOL_NAME,
        )

    def ticket_issuer(self, worker: PeerId, addresses: tuple[TransferAddress, ...], slab_pages: int) -> TicketIssuer:
        """An office that issues tickets for pools of this rank's shape."""
        kv = self.runner.kv  # [slots, pages, kv_heads, ...]
        num_heads = kv.shape[2] * len(addresses)
        head_bytes = math.prod(kv.shape[3:]) * kv.element_size()
        return TicketIssuer(worker, addresses, slab_pages, kv.shape[0], num_heads, head_bytes, page_dtype(self.runner))


def page_dtype(runner: ModelRunner) -> str:
    """The data type of the runner's pages, as written on tickets."""
    return str(runner.kv.dtype).removeprefix("torch.")


def for_both_roles(config: WorkerConfig) -> EngineConfig:
    """Engine settings that suffice for both roles: the larger of their limits for sequences, their length, and the
    tokens of a step."""
    ours = config.engine
    other = config.in_role("decode" if config.role == "prefill" else "prefill").engine
    has_longest = ours.max_model_len is not None and other.max_model_len is not None
    return dataclasses.replace(
        ours,
        max_num_seqs=max(ours.most_num_seqs, other.most_num_seqs),
        max_step_tokens=max(ours.most_step_tokens, other.most_step_tokens),
        max_model_len=max(ours.max_model_len or 0, other.max_model_len or 0) if has_longest else None,
    )


@contextmanager
def rank_parts(config: WorkerConfig, tp: TensorParallel, ended: Callable[[RankOutcome], None]) -> Iterator[RankParts]:
    """Loads this rank's share of the model and opens its transport, which is closed at the end.

    Raises ModelError, FilesChanged, EngineConfigError, StagingError or TransportError, each in a sentence.
    """
    engine = config.engine
    files = files_to_load(config)
    code: RemoteCode = "here" if config.trust_remote_code else "refused"
    model = read_spec(Path(config.model_dir), engine.model_impl, code)
    # By default a fair share of the cores; native kernels may get more (see `build_runner`).
    torch.set_num_threads(engine.num_threads or max(1, num_cores() // config.ranks_on_host))
    # We run no graphs of independent operators, so a second pool of threads would only compete for the cores.
    if torch.get_num_interop_threads() != 1:  # it can be set once in the life of a process
        torch.set_num_interop_threads(1)
    limits = engine_limits(
        config.model_dir,
        engine,
        tp=tp,
        max_queued_tokens=config.max_queued_tokens,
        ranks_on_host=config.ranks_on_host,
        model_id=model_key(config.model, config.model_version),  # the name by which the router knows it
        model=model,
        kv_budget_bytes=config.kv_budget_bytes,
        holds_prompts=config.role == "prefill",
    )
    is_shared = config.transfer.transport in ("auto", "shared_memory")
    memory = KvMemory(is_shared=is_shared, is_elastic=config.kv_budget_bytes is not None)
    runner = build_runner(
        config.model_dir, for_both_roles(config), limits.num_pages, tp=tp, memory=memory, files=files, spec=model
    )
    files.check()
    loaded = runner.model.config
    if limits.prefix_caching and isinstance(loaded, GeneralSpec) and loaded.continues_singly:
        log.info(
            "%s has no prefix cache: it would compute all that follows a prefix token by token", loaded.architecture
        )
        limits = dataclasses.replace(limits, prefix_caching=False)
    cache_dir = weight_cache_dir(engine) if tp.rank == 0 else None
    if cache_dir is not None and config.weight_memory_bytes is not None:
        keep_recent(cache_dir, config.weight_memory_bytes)
    with closing(memory), closing(RankAgent(runner, memory.pool, tp, config, ended)) as agent:
        runner.sink = agent
        yield RankParts(limits, runner, agent, model, files, memory)


def files_to_load(config: WorkerConfig) -> SteadyFiles:
    """The files of the model's directory. Raises FilesChanged if they are not those of the version to be served."""
    if config.manifest is None:
        return SteadyFiles.of(Path(config.model_dir))
    try:
        return SteadyFiles.verified(Path(config.model_dir), config.manifest)
    except FilesChanged as error:
        raise FilesChanged(f"{REFUSES} version {config.model_version}: {error}") from None
