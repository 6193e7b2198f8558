"""The state of one request: its current attempt, the workers involved in it, and how far it has come.

    queued --local--> prefill ----------------------------> decode --> finished
       |                                                      ^
       +---remote--> placed --Reserved--> prefill --> transfer
                        |                    first token    HandedOff
                        +--mostly cached--> prefill (local)

When a worker fails or is lost, any state goes back to `queued` with the next attempt. A request that is decoding may
move to another decode worker (`migration`), which knows it as a separate attempt.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from slipstream.kv_transfer.api.ticket import PeerId
from slipstream.router.protocol.generation import Deadline, GenerateRequest, Levels, Phase, Usage
from slipstream.router.protocol.messages import EngineRequest, RetentionHint
from slipstream.router.registry.worker_registry import WorkerState
from slipstream.router.requests.history import RequestRecord, Sampling, Timeline
from slipstream.router.requests.migration import Migration
from slipstream.router.requests.output_length import UNFORESEEN, OutputForecast
from slipstream.router.requests.output_log import OutputLog
from slipstream.router.requests.placement_decision import Decision


@dataclass(slots=True, eq=False)
class RequestState:
    """`decode` and `prefill` are the workers of the current attempt. `prefill` is kept until both the first token and
    the pages have left it; before `prefill_sent` the request only holds a charge there."""

    request: GenerateRequest
    prompt_ids: bytes  # packed int32
    output: OutputLog
    record: RequestRecord
    levels: Levels
    deadline: Deadline  # from its arrival to its end
    request_id: str = field(init=False)
    num_prompt_tokens: int = field(init=False)
    attempt: int = 0
    last_attempt: int = 0  # the highest number given so far, to an attempt or to a migration to another worker
    phase: Phase = "queued"
    decode: WorkerState | None = None
    prefill: WorkerState | None = None
    prefill_sent: bool = False
    handed_off: bool = False
    is_converted: bool = False  # its reservation was turned into a local prefill at the same worker
    migration: Migration | None = None  # if it is on its way to another decode worker
    paused_since_s: float | None = None  # set if it has moved and its next token has not come yet
    num_output_at_migration: int = 0  # tokens that it had when it moved last
    num_failures: int = 0  # attempts that failed, not counting those that a worker refused to begin
    num_refusals: int = 0
    num_unreachable: int = 0  # attempts that failed because the workers could not reach each other
    num_cached_tokens: int | None = None  # of the prompt, as reported with the first token
    num_passed: int = 0  # how many later requests were placed while it did not fit
    charged_tokens: int = 0  # what its tenant was charged for it, from its first turn on
    failed_on: set[PeerId] = field(default_factory=set)
    failed_versions: set[str] = field(default_factory=set)  # versions that may have been at fault for a failure
    forecast: OutputForecast = UNFORESEEN  # of the length of its answer, made on arrival
    retention: RetentionHint | None = None  # what its workers keep its pages for
    num_scored: int = 0  # prompt tokens behind the first whose log-probabilities have come
    num_to_score: int = field(init=False)  # of so many they are wanted

    def __post_init__(self) -> None:
        self.request_id = self.request.request_id
        self.num_prompt_tokens = len(self.prompt_ids) // 4
        wants_scores = self.request.sampling.prompt_logprobs is not None
        self.num_to_score = self.num_prompt_tokens - 1 if wants_scores else 0

    @property
    def is_background(self) -> bool:
        return self.request.is_background

    @staticmethod
    def of(request: GenerateRequest, prompt_ids: bytes, levels: Levels, deadline: Deadline, now: float) -> RequestState:
        """A request that is being admitted. `prompt_ids` is its prompt as packed int32."""
        output = OutputLog(request.sampling.max_tokens, request.resumed.output_ids if request.resumed else b"")
        record = RequestRecord(
            request.request_id,
            request.tenant,
            request.priority,
            len(prompt_ids) // 4,
            Timeline(now),
            names=request.names,
            slo=request.slo,
            levels=levels,
            session=request.session,
            timeout_s=request.timeout_s,
            max_output_tokens=request.sampling.max_tokens,
            sampling=Sampling.of(request.sampling),
            expected_output_tokens=request.expected_output_tokens,
            output=output,
            trace_id=request.trace_id,
            model=request.model,
        )
        return RequestState(request, prompt_ids, output, record, levels, deadline)

    @property
    def version(self) -> str:
        """The version of the model, chosen at admission ("" while none is known). Its workers are all of that
        version."""
        return self.record.version

    @property
    def num_tokens(self) -> int:
        """How many tokens a new attempt would have to prefill: the prompt and the output so far."""
        return self.num_prompt_tokens + len(self.output.ids)

    @property
    def is_scored(self) -> bool:
        """Whether no log-probabilities of its prompt are missing."""
        return self.num_scored >= self.num_to_score

    @property
    def most_tokens(self) -> int:
        """How many tokens prompt and output may have in the end, unless the model's context ends before."""
        return self.num_prompt_tokens + self.request.sampling.max_tokens

    @property
    def has_first_token(self) -> bool:
        """Whether the current attempt has produced a token."""
        return self.phase in ("transfer", "decode")

    @property
    def usage(self) -> Usage:
        cached = min(self.num_cached_tokens or 0, self.num_prompt_tokens)
        return Usage(self.num_prompt_tokens, len(self.output.ids), cached)

    def engine_request(self) -> EngineRequest:
        """The current attempt in the form in which it is sent to a worker."""
        return EngineRequest(
            request_id=self.request_id,
            attempt=self.attempt,
            prompt_ids=self.prompt_ids,
            output_ids=self.output.packed_ids,
            sampling=self.request.sampling,
            cache_salt=self.request.cache_salt,
            priority=self.request.priority,
            retention=self.retention,
            num_scored=self.num_scored,
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
        """Changes the version of a request that is on no worker."""
        self.record.version = version
        self.num_passed = 0

    def begin_next_attempt(self) -> None:
        """Forgets the workers and the progress of the current attempt, and keeps the output."""
        self.last_attempt += 1
        self.attempt = self.last_attempt
        self.record.num_retries += 1
        self.paused_since_s = None
        self.decode = self.prefill = None
        self.prefill_sent = self.handed_off = self.is_converted = False
        self.num_passed = 0
        self.output.drop_early()
