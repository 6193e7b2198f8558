"""One request on its way: which attempt is current, who is involved in it, and how far it is.

    queued --local--> prefill ----------------------------> decode --> finished
       |                                                      ^
       +---remote--> placed --Reserved--> prefill --> transfer
                        |                    first token    HandedOff
                        +--mostly cached--> prefill (local)

Any state goes back to `queued` with the next attempt when a worker fails or is lost. A request that decodes may move to
another decode worker (`move`), where it is an attempt of its own.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from slipstream.kv_transfer.ticket import PeerId
from slipstream.router.generation import GenerateRequest, Phase, Usage
from slipstream.router.history import RequestRecord
from slipstream.router.messages import EngineRequest
from slipstream.router.move import Move
from slipstream.router.output_log import OutputLog
from slipstream.router.placement.decision import Decision
from slipstream.router.placement.load import PendingPrefill
from slipstream.router.placement.output_length import UNFORESEEN, OutputForecast
from slipstream.router.prefix.block_hash import BlockChain
from slipstream.router.roster import WorkerState


@dataclass(slots=True, eq=False)
class RequestState:
    """`decode` and `prefill` are the workers of the current attempt; `prefill` is kept until both the first token
    and the pages have left it, and before `prefill_sent` it only holds a charge there."""

    request: GenerateRequest
    prompt_ids: bytes  # packed int32
    output: OutputLog
    record: RequestRecord
    attempt: int = 0
    last_attempt: int = 0  # the highest number given to a try, or to a move to another worker
    phase: Phase = "queued"
    decode: WorkerState | None = None
    prefill: WorkerState | None = None
    prefill_sent: bool = False
    handed_off: bool = False
    is_converted: bool = False  # its reservation was to become a sequence of the same worker
    move: Move | None = None  # on its way to another decode worker
    paused_since_s: float | None = None  # it has moved, and its next token has not come yet
    num_failures: int = 0  # attempts that failed; those that a worker refused to begin are not among them
    num_refusals: int = 0
    num_unreachable: int = 0  # attempts whose pages had no way
    num_cached_tokens: int | None = None  # of the prompt, as the first token said
    num_passed: int = 0  # requests behind it that were placed while it did not fit
    charged_tokens: int = 0  # to its tenant's share of the queue, since its first turn
    failed_on: set[PeerId] = field(default_factory=set)
    failed_versions: set[str] = field(default_factory=set)  # that may have been at fault
    forecast: OutputForecast = UNFORESEEN  # of its answer, made when it came
    # Of placement: what the current attempt has added to the load of its workers (`placement.progress`).
    expected_output_tokens: float = 0.0  # of the whole answer, as it was counted
    pending: PendingPrefill | None = None
    pending_on: WorkerState | None = None
    is_decoding: bool = False
    placed_s: float | None = None
    first_token_s: float | None = None  # of this attempt
    transfer_pages: int | None = None
    decode_cached_tokens: int = 0  # on the decode worker, as it was known when it was chosen
    shortlist_cached: dict[WorkerState, int] = field(default_factory=dict)  # between choice and start
    wait_until_s: float | None = None  # until then it may wait for a better worker than there is room on
    num_predicted_cached: int | None = None  # tokens, at the worker that prefills; until its first chunk tells
    blocks: BlockChain | None = None  # of prompt and output, as far as the prefix index had to know them

    @property
    def request_id(self) -> str:
        return self.request.request_id

    @property
    def version(self) -> str:
        """Of the model: chosen when it was admitted, "" while none is known. Its workers are of that version."""
        return self.record.version

    @property
    def num_prompt_tokens(self) -> int:
        return len(self.prompt_ids) // 4

    @property
    def num_tokens(self) -> int:
        """What a new attempt has to prefill: the prompt and the output so far."""
        return len(self.prompt_ids) // 4 + len(self.output)

    @property
    def has_first_token(self) -> bool:
        """The current attempt has produced something."""
        return self.phase in ("transfer", "decode")

    @property
    def usage(self) -> Usage:
        cached = min(self.num_cached_tokens or 0, self.num_prompt_tokens)
        return Usage(self.num_prompt_tokens, len(self.output), cached)

    def engine_request(self) -> EngineRequest:
        """The current attempt as a worker gets it."""
        return EngineRequest(
            request_id=self.request.request_id,
            attempt=self.attempt,
            prompt_ids=self.prompt_ids,
            output_ids=self.output.packed_ids,
            sampling=self.request.sampling,
            cache_salt=self.request.cache_salt,
            priority=self.request.priority,
        )

    def enter(
        self,
        phase: Phase,
        now: float,
        detail: str = "",
        decision: Decision | None = None,
        moved_to: PeerId | None = None,
    ) -> None:
        self.phase = phase
        self.record.note(phase, now, self.attempt, detail, decision, moved_to)

    def adopt(self, version: str) -> None:
        """From now on it belongs to another version, whose pages have other names. It is on no worker."""
        self.record.version = version
        self.blocks = None
        self.shortlist_cached = {}
        self.wait_until_s = None
        self.num_passed = 0

    def begin_next_attempt(self) -> None:
        """Forgets the current attempt's workers and progress, keeps the output."""
        self.last_attempt += 1
        self.attempt = self.last_attempt
        self.record.num_retries += 1
        self.paused_since_s = None
        self.decode = self.prefill = None
        self.prefill_sent = self.handed_off = self.is_converted = False
        self.num_passed = 0
        self.wait_until_s = None
        self.num_predicted_cached = None
        self.output.drop_early()
