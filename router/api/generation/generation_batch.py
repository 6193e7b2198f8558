"""A request to the API, as it was received and as a batch of generations: limits, usage, attributes of its span."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from slipstream.router.access.caller import Caller
from slipstream.router.access.usage import UsageCounts
from slipstream.router.api.generation.answer.answer import AnswerKeeper
from slipstream.router.api.generation.answer.answer_format import AnswerFormat, AnswerHead
from slipstream.router.api.generation.answer.choice import Choice
from slipstream.router.api.generation.answer.output import ChoiceOutput, Events
from slipstream.router.api.generation.answer.output_text import OutputText
from slipstream.router.api.generation.answer.output_tokens import OutputTokens
from slipstream.router.api.generation.answer.token_report import ReportedTokens
from slipstream.router.api.openai.body.sampling import SEED_MASK
from slipstream.router.api.openai.schema.chat_request import ChatRequest
from slipstream.router.api.openai.schema.generation_fields import GenerationFields
from slipstream.router.catalog.served_model import ServedModel
from slipstream.router.observability.tracing.request_trace import Value
from slipstream.router.protocol.generation import GenerateRequest, GenerationError, Resumed, Slo
from slipstream.router.protocol.messages import SamplingParams
from slipstream.router.requests.rejections import RejectedRequest
from slipstream.router.text.detokenizer import PieceTable

BACKGROUND_SLO = Slo(
    ttft_s=3600.0, itl_s=10.0
)  # of requests without a waiting client: they must not count as served too late
USUAL_OUTPUT_TOKENS = 1024  # reserved from a rate limit if the request names no length; corrected at its end


class Prompt(NamedTuple):
    """One prompt of a request. `text` is set if it is to be echoed."""

    packed_ids: bytes  # shared by all choices; a list of ints would be nine times as large
    sampling: SamplingParams
    text: str = ""


class ReceivedRequest(NamedTuple):
    """A request as it arrived. `exchange_id` is the id in the answer's X-Request-Id header, which the client may have
    chosen; `head` begins the answer and has its id; `seed` is used if the client gives none. `model` is the one that
    the name in the body stands for, `version` the version of it that was asked for, "" if none was. `versions` are
    those that may serve it, (): any."""

    body: GenerationFields
    model: ServedModel
    version: str
    exchange_id: str
    caller: Caller
    trace_id: str
    arrived_s: float
    head: AnswerHead
    seed: int
    versions: tuple[str, ...] = ()
    session: str = ""  # the conversation, in a form that no other tenant can produce
    trace_span: str = ""  # "": not sampled
    keeps_version: bool = True  # the requests of this session have the same version; not if it is only a cache key

    @property
    def tenant(self) -> str:
        return self.caller.tenant(self.body.user or "")

    def refused(self, num_prompt_tokens: int, error: GenerationError, now: float) -> RejectedRequest:
        """Its record if it is refused before it could be submitted."""
        body = self.body
        return RejectedRequest(
            now,
            self.head.id,
            (self.exchange_id,),
            self.tenant,
            body.priority or 0,
            num_prompt_tokens,
            body.stated_max_tokens or 0,
            body.expected_output_tokens,
            body.service_level,
            self.session,
            body.timeout_s,
            self.trace_id,
            self.version,
            error,
            self.model.name,
        )


class Reading(Protocol):
    """How outputs are read. `pieces` shows the tokens as they are read."""

    @property
    def pieces(self) -> PieceTable: ...
    def output(self, stops: Sequence[str], include_stop: bool, min_tokens: int) -> ChoiceOutput[Events]: ...


class GenerationBatch:
    """A request that passed its checks: each of its `prompts` is to be continued `choices_per_prompt` times, by as many
    beams if it is a search. `answer_id` is the id in the body of its answer; `prompt_param` is the field that its
    prompts came in. Outputs are text by `pieces`, or events where they are read (`reading`). A `keeper` stores the
    answer. `tokens` is there if it says more of tokens than their text."""

    __slots__ = (
        "answer_id",
        "body",
        "choices_per_prompt",
        "form",
        "keeper",
        "num_choices",
        "num_prompt_tokens",
        "pieces",
        "prompt_param",
        "prompts",
        "reading",
        "received",
        "tokens",
    )

    def __init__(
        self,
        received: ReceivedRequest,
        prompts: Sequence[Prompt],
        prompt_param: str,
        form: AnswerFormat[Any],
        pieces: PieceTable,
        reading: Reading | None = None,
        keeper: AnswerKeeper | None = None,
        tokens: ReportedTokens | None = None,
    ) -> None:
        self.received = received
        self.body = received.body
        self.answer_id = received.head.id
        self.prompts = prompts
        self.pieces = pieces
        self.reading = reading
        self.keeper = keeper
        self.tokens = tokens
        self.prompt_param = prompt_param
        self.form = form
        self.choices_per_prompt = received.body.candidates_per_prompt
        self.num_choices = len(prompts) * self.choices_per_prompt
        self.num_prompt_tokens = sum([len(prompt.packed_ids) for prompt in prompts]) // 4

    @property
    def num_best(self) -> int | None:
        """How many of the choices of each prompt are sent; None: all."""
        num_wanted = self.body.n or 1
        return num_wanted if num_wanted < self.choices_per_prompt else None

    @property
    def num_reserved_tokens(self) -> int:
        """How many tokens the request may use. An output without a stated length is assumed to have a usual one."""
        body = self.body
        output = body.expected_output_tokens or body.stated_max_tokens or USUAL_OUTPUT_TOKENS
        outputs = sum([min(prompt.sampling.max_tokens, output) for prompt in self.prompts])
        return self.num_prompt_tokens + self.choices_per_prompt * outputs

    @property
    def clamped_to(self) -> int | None:
        """The most output tokens that a choice may have, if that is less than was asked for; the least of them all."""
        wanted = self.body.stated_max_tokens
        if wanted is None:
            return None
        most = min([prompt.sampling.max_tokens for prompt in self.prompts])
        return most if most < wanted else None

    def prompt_of(self, index: int) -> Prompt:
        """The prompt of a choice."""
        return self.prompts[index // self.choices_per_prompt]

    def prefix_of(self, prompt: int) -> Any:
        """What stands before the outputs of a prompt."""
        return self.prompts[prompt].text if self.reading is None else []

    def output(self) -> ChoiceOutput[Any]:
        """The output of one choice."""
        body = self.body
        stops, includes_stop, min_tokens = body.stop or (), bool(body.include_stop_str_in_output), body.min_tokens or 0
        if self.reading is not None:
            return self.reading.output(stops, includes_stop, min_tokens)
        if not body.detokenizes:
            return OutputTokens()
        return OutputText(self.pieces, stops, includes_stop, min_tokens)

    def generation(self, index: int, resumed: Resumed | None = None, *, is_background: bool = False) -> GenerateRequest:
        """The request to the dispatcher for one choice."""
        body, received, caller = self.body, self.received, self.received.caller
        choices_per_prompt = self.choices_per_prompt
        prompt = self.prompt_of(index)
        sampling = prompt.sampling
        if choices_per_prompt > 1:
            sampling = sampling._replace(seed=(sampling.seed + index % choices_per_prompt) & SEED_MASK)
            if index % choices_per_prompt:  # of the prompt, once is enough
                sampling = sampling._replace(prompt_logprobs=None)
        request_id, names = self.ids_of(index)
        return GenerateRequest(
            request_id=request_id,
            prompt_ids=prompt.packed_ids,
            sampling=sampling,
            priority=0 if is_background else body.priority or 0,
            cache_salt=caller.own(body.cache_salt or ""),
            tenant=received.tenant,
            weight=caller.weight,
            names=names,
            slo=BACKGROUND_SLO if is_background else body.service_level,
            session=received.session,
            expected_output_tokens=body.expected_output_tokens,
            timeout_s=body.timeout_s,
            choice=index,
            trace_id=received.trace_id,
            trace_span=received.trace_span,
            version=received.version,
            first_choice=self.ids_of(0)[0] if index else "",
            wants_record=bool(body.explain),
            resumed=resumed,
            model=received.model.name,
            versions=received.versions,
            retention=body.retention,
            keeps_version=received.keeps_version,
            is_background=is_background,
        )

    def ids_of(self, index: int) -> tuple[str, tuple[str, ...]]:
        """The request id of a choice, and its names. The first of several choices is also known by the answer's ids."""
        if self.num_choices == 1:
            return self.answer_id, (self.received.exchange_id,)
        of_all = (self.answer_id, self.received.exchange_id) if index == 0 else ()
        return f"{self.answer_id}#{index}", (f"{self.received.exchange_id}#{index}", *of_all)


def used_by(choices: Sequence[Choice[Any]], batch: GenerationBatch) -> UsageCounts:
    """What a request has used at its end. A prompt is counted once for all its choices, as in the answer's usage."""
    choices_per_prompt = batch.choices_per_prompt
    used = UsageCounts(num_requests=1, num_errors=int(len(choices) < batch.num_choices))
    for choice in choices:
        finish = choice.stream.finish
        used.num_output_tokens += choice.output.num_tokens
        if finish is not None and choice.index % choices_per_prompt == 0:
            used.num_prompt_tokens += finish.usage.num_prompt_tokens
            used.num_cached_tokens += finish.usage.num_cached_tokens
        if choice.reason is None and finish is not None and finish.reason == "error":
            used.num_errors = 1
    return used


def reasons_of(choices: Sequence[Choice[Any]]) -> list[str]:
    """Why each choice ended, of those that have."""
    ends = [choice.reason or (choice.stream.finish and choice.stream.finish.reason) for choice in choices]
    return [reason for reason in ends if reason]


def span_attributes(batch: GenerationBatch) -> dict[str, Value]:
    """The fields that the request has set, by their names in OpenTelemetry's GenAI conventions."""
    body, is_chat = batch.body, isinstance(batch.body, ChatRequest)
    given = {
        "gen_ai.request.max_tokens": body.stated_max_tokens,
        "gen_ai.request.temperature": body.temperature,
        "gen_ai.request.top_p": body.top_p,
        "gen_ai.request.top_k": body.top_k,
        "gen_ai.request.seed": body.seed,
        "gen_ai.request.presence_penalty": body.presence_penalty,
        "gen_ai.request.frequency_penalty": body.frequency_penalty,
        "gen_ai.request.choice.count": batch.num_choices if batch.num_choices > 1 else None,
        "gen_ai.conversation.id": body.session_id,
    }
    return {
        "gen_ai.operation.name": "chat" if is_chat else "text_completion",
        "gen_ai.provider.name": "slipstream",
        "gen_ai.request.model": body.model,
        "gen_ai.response.model": batch.received.model.name,
        "gen_ai.response.id": batch.answer_id,
        "gen_ai.request.stream": bool(body.stream),
        **{name: value for name, value in given.items() if value is not None},
    }
