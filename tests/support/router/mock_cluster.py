"""A dispatcher and mock workers in virtual time: every message is heard at once, and time goes from one thing that is
due to the next."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from slipstream.kv_transfer.api.ticket import PeerId, TransferAddress
from slipstream.router.config.router_config import DispatchConfig
from slipstream.router.dispatch.dispatcher import Dispatcher
from slipstream.router.dispatch.table.actions import Action, Close, Emit, Finish, Send
from slipstream.router.protocol.block_hash import pack_block_ids, unpack_block_ids
from slipstream.router.protocol.generation import GenerateRequest, GenerationFinish
from slipstream.router.protocol.messages import (
    BlocksChanged,
    Generate,
    Prefill,
    Reserve,
    ResyncBlocks,
    Role,
    SamplingParams,
    WorkerMessage,
    pack_ids,
)
from slipstream.router.requests.history import History
from slipstream.workers.mock.mock_profile import MockProfile
from slipstream.workers.mock.mock_worker import MockWorker
from slipstream.workers.mock.output_policy import OutputPolicy
from slipstream.workers.transfers.ticket_issuer import TicketIssuer
from tests.support.router.greetings import make_hello

PROFILE = MockProfile(step_s=0.002, prefill_token_s=1e-4, decode_token_s=1e-4, transfer_s=0.001, transfer_page_s=1e-4)


@dataclass
class Answer:
    token_ids: list[int] = field(default_factory=list)
    finish: GenerationFinish | None = None
    workers: list[str] = field(default_factory=list)  # that it was sent to, in order

    @property
    def num_cached(self) -> int:
        assert self.finish is not None
        return self.finish.usage.num_cached_tokens


class ClusterWorker(MockWorker):
    def __init__(self, peer: PeerId, role: Role, profile: MockProfile, policy: OutputPolicy | None) -> None:
        super().__init__(profile, role, TicketIssuer(peer, (TransferAddress("h", 1),), 8, 2, 2, 64), "m", policy=policy)
        self.peer, self.role = peer, role
        self.loses_blocks = False  # what it tells of them does not arrive

    def due_s(self) -> float | None:
        due = [at for at in (self.next_deadline_s(), self.protocol.next_report_s()) if at is not None]
        return min(due, default=None)


class MockCluster:
    """`p0`, `p1`, ... prefill and `d0`, `d1`, ... decode."""

    def __init__(
        self,
        config: DispatchConfig | None = None,
        *,
        num_prefill: int = 2,
        num_decode: int = 2,
        profile: MockProfile = PROFILE,
        history: History | None = None,
        policy: OutputPolicy | None = None,
    ) -> None:
        self.dispatcher = Dispatcher(config or DispatchConfig(), history)
        self.now_s = 0.0
        self.workers: dict[PeerId, ClusterWorker] = {}
        self.answers: dict[str, Answer] = {}
        self.closed: list[Close] = []
        self._profile = profile
        self._policy = policy
        self._on_their_way: deque[tuple[ClusterWorker, WorkerMessage]] = deque()
        self._is_hearing = False
        for number in range(num_prefill):
            self.join(f"p{number}", "prefill")
        for number in range(num_decode):
            self.join(f"d{number}", "decode")

    def join(self, name: str, role: Role, epoch: int = 1) -> ClusterWorker:
        worker = ClusterWorker(PeerId(name, epoch), role, self._profile, self._policy)
        profile = self._profile
        hello = make_hello(
            worker.peer,
            role,
            page_tokens=profile.page_tokens,
            num_pages=profile.num_pages,
            max_slots=profile.max_slots,
            max_queued_tokens=profile.max_queued_tokens,
            max_model_len=profile.max_model_len,
            prefix_caching=profile.prefix_caching,
        )
        self.workers[worker.peer] = worker
        self._perform(self.dispatcher.worker_joined(hello, self.now_s))
        self._say(worker, [])
        return worker

    def worker(self, name: str) -> ClusterWorker:
        return next(worker for worker in self.workers.values() if worker.peer.name == name)

    def lose(self, name: str) -> None:
        peer = self.worker(name).peer
        del self.workers[peer]
        self._perform(self.dispatcher.worker_lost(peer, self.now_s))

    def submit(
        self, request_id: str, prompt: Sequence[int], num_output: int = 8, session: str = "", salt: str = ""
    ) -> Answer:
        answer = self.answers[request_id] = Answer()
        sampling = SamplingParams(max_tokens=num_output, ignore_eos=self._policy is None)
        request = GenerateRequest(request_id, pack_ids(prompt), sampling, session=session, cache_salt=salt)
        self._perform(self.dispatcher.submit(request, self.now_s))
        return answer

    def ask(
        self, request_id: str, prompt: Sequence[int], num_output: int = 8, session: str = "", salt: str = ""
    ) -> Answer:
        """Submits and lets time pass until all is answered and reported."""
        answer = self.submit(request_id, prompt, num_output, session, salt)
        self.run()
        assert answer.finish is not None
        assert answer.finish.error is None, answer.finish
        return answer

    def run(self, until_s: float = float("inf")) -> None:
        """Until nothing is due any more. Deadlines of requests only count where nothing else happens."""
        while True:
            due = {peer: at for peer, worker in self.workers.items() if (at := worker.due_s()) is not None}
            peer = min(due, key=lambda peer: due[peer], default=None)
            timer_s = self.dispatcher.next_deadline()
            if peer is None and timer_s is not None and self.dispatcher.num_requests:
                self.now_s = max(self.now_s, timer_s)
                self._perform(self.dispatcher.tick(self.now_s))
                continue
            if peer is None or due[peer] > until_s:
                return
            self.now_s = max(self.now_s, due[peer])
            worker = self.workers[peer]
            self._say(worker, worker.advance(self.now_s))
            self._perform(self.dispatcher.tick(self.now_s))

    def check_index(self) -> None:
        """The router knows exactly what the workers' caches hold."""
        self.dispatcher.check_integrity()
        for peer, worker in self.workers.items():
            held = set(unpack_block_ids(pack_block_ids(worker.engine.prefix_cache.digests())))
            assert self.dispatcher.known_blocks(peer) == held, peer

    def _say(self, worker: ClusterWorker, messages: Sequence[WorkerMessage]) -> None:
        """Messages are heard in the order in which they were said."""
        reports = [m for m in worker.reports(self.now_s) if not (worker.loses_blocks and isinstance(m, BlocksChanged))]
        said = [*messages, *reports]
        self._on_their_way += [(worker, message) for message in said]
        if not self._is_hearing:
            self._is_hearing = True
            while self._on_their_way:
                speaker, message = self._on_their_way.popleft()
                self._perform(self.dispatcher.worker_message(speaker.peer, message, self.now_s))
            self._is_hearing = False

    def _perform(self, actions: Sequence[Action]) -> None:
        for action in actions:
            match action:
                case Send(peer, message):
                    worker = self.workers.get(peer)
                    if worker is None:
                        continue
                    if isinstance(message, ResyncBlocks):
                        worker.protocol.blocks.resync()
                        continue
                    if isinstance(message, Generate | Reserve | Prefill):
                        self.answers[message.request.request_id].workers.append(peer.name)
                    self._say(worker, worker.handle(message, self.now_s))
                case Emit(request_id, token_ids):
                    self.answers[request_id].token_ids += token_ids
                case Finish(request_id, finish):
                    self.answers[request_id].finish = finish
                case Close() as close:
                    self.closed.append(close)
                    self.workers.pop(close.worker, None)
