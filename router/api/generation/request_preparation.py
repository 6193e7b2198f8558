"""Turns a request into a batch of generations: its prompts as tokens, what their outputs have to follow, how these are
sampled, read and shown."""

from __future__ import annotations

from slipstream.router.api.generation.answer.token_names import LogprobNames
from slipstream.router.api.generation.chat_reading import (
    check_can_continue,
    check_tools,
    reading_of,
    reasoning_state,
    request_tools,
    text_pieces,
)
from slipstream.router.api.generation.generation_batch import GenerationBatch, Prompt, ReceivedRequest
from slipstream.router.api.generation.model_lookup import ModelLookup, ModelStatus
from slipstream.router.api.generation.preparation_stages import PreparationStages
from slipstream.router.api.generation.prompts import DEFAULT_COMPLETION_TOKENS, PromptReader, room
from slipstream.router.api.generation.token_requests import chat_report, completion_report, reported_tokens
from slipstream.router.api.openai.answer.completion_format import CompletionFormat
from slipstream.router.api.openai.answer.formats import ChatFormat
from slipstream.router.api.openai.answer.message_format import MessageFormat
from slipstream.router.api.openai.body.beam_fields import check_beams, check_no_beams
from slipstream.router.api.openai.body.restrictions import NO_RESTRICTIONS, Restrictions, restrictions_of
from slipstream.router.api.openai.body.sampling import SEED_MASK, check_token_ids, sampling_params
from slipstream.router.api.openai.body.structured_output import RequestGrammars
from slipstream.router.api.openai.body.tool_grammars import ToolGrammars
from slipstream.router.api.openai.schema.chat_request import ChatRequest
from slipstream.router.api.openai.schema.completion_request import CompletionRequest
from slipstream.router.api.openai.schema.generation_fields import GenerationFields
from slipstream.router.api.openai.schema.tools import ToolUse
from slipstream.router.catalog.model_outputs import ModelOutputs
from slipstream.router.catalog.served_model import ServedModel
from slipstream.router.parsers.grammar.output_grammar import ReasoningState
from slipstream.router.protocol.messages import GrammarSpec, SamplingParams, pack_ids

SEARCH_OR_RESTRICT = frozenset(
    {"use_beam_search", "length_penalty", "early_stopping", "allowed_token_ids", "bad_words", "logits_processors"}
)
SEED_STEP = 0x9E3779B97F4A7C15  # between the seeds of a request's prompts, to keep them far apart in 63 bits


class RequestPreparation:
    """The requests of one API. With `clamps`, more output than there is room for is cut down to that."""

    def __init__(self, lookup: ModelLookup, status: ModelStatus, stages: PreparationStages, clamps: bool) -> None:
        self._lookup = lookup
        self._status = status
        self._stages = stages
        self._clamps = clamps
        self._grammars = RequestGrammars()
        self._tool_grammars = ToolGrammars(self._grammars)

    async def of_chat(self, received: ReceivedRequest, body: ChatRequest) -> GenerationBatch:
        """Raises HttpError."""
        model = received.model
        limit = self._lookup.limit_of(model.name)
        await self._stages.next_stage(model.name)
        restrictions = await self._restrictions(body, model)
        use, outputs = body.tool_use, model.outputs
        if use is not None:
            check_tools(use, model)
        packed_ids = await self.prompt_of_chat(model, body, received.caller.own(body.cache_salt or ""))
        asked_for = model.defaults.max_tokens(body.stated_max_tokens)
        default = model.defaults.default_max_tokens(None)
        max_tokens = room(packed_ids, limit, asked_for, default, "messages", self._clamps)
        reasoning = reasoning_state(model, packed_ids) if not body.continued else "over"
        grammar = await self._grammars.of(body)
        if outputs is not None and (use is not None or (grammar is not None and reasoning != "over")):
            grammar = await self._output_grammar(use, outputs, reasoning, grammar)
        logprobs = (body.top_logprobs or 0) if body.logprobs else None
        params = sampling(body, model, max_tokens, logprobs, grammar, received.seed)
        report = chat_report(body, packed_ids)
        if report.num_top is not None:
            params = params._replace(prompt_logprobs=report.num_top)
        prompts = [Prompt(packed_ids, restrictions.applied(params))]
        pieces, reading = text_pieces(body, model), reading_of(body, model, reasoning)
        head, shows_logprobs = received.head, logprobs is not None
        if reading is None:
            names = LogprobNames(pieces, bool(body.return_tokens_as_token_ids))
            form = ChatFormat(head, names, shows_logprobs, body.wants_usage, report)
            tokens = reported_tokens(report, form, names, pieces)
            return GenerationBatch(received, prompts, "messages", form, pieces, tokens=tokens)
        is_legacy = use is not None and use.is_legacy
        names = LogprobNames(reading.pieces, bool(body.return_tokens_as_token_ids))
        parsed_form = MessageFormat(head, names, shows_logprobs, body.wants_usage, is_legacy, report)
        tokens = reported_tokens(report, parsed_form, names, pieces)
        return GenerationBatch(received, prompts, "messages", parsed_form, pieces, reading, tokens=tokens)

    async def prompt_of_chat(self, model: ServedModel, body: ChatRequest, tenant: str) -> bytes:
        """The packed token ids of the prompt; what is remembered of it is kept for the `tenant`, a name that no other
        can have (`Caller.own`). Raises HttpError."""
        reader, limit = PromptReader(model.tokenizer), self._lookup.limit_of(model.name)
        tools = body.tool_use.tools if body.tool_use is not None else ()
        variables, outputs = body.template_variables, model.outputs
        if not body.continued:
            return await reader.of_chat(body.messages, limit, variables, tools, outputs, tenant=tenant)
        before = body.messages[:-1]
        check_can_continue(model, await reader.of_chat(before, limit, variables, tools, outputs, tenant=tenant))
        return await reader.of_chat(before, limit, variables, tools, outputs, body.continued, tenant)

    async def _output_grammar(
        self, use: ToolUse | None, outputs: ModelOutputs, reasoning: ReasoningState, content: GrammarSpec | None
    ) -> GrammarSpec | None:
        """What the output has to follow: `content`, or calls of tools. Raises HttpError."""
        return await self._tool_grammars.of(
            outputs.format,
            outputs.markers,
            [] if use is None else request_tools(use),
            "none" if use is None else use.mode,
            is_parallel=use is None or use.is_parallel,
            content=content,
            reasoning=reasoning,
        )

    async def of_completion(self, received: ReceivedRequest, body: CompletionRequest) -> GenerationBatch:
        """Raises HttpError."""
        model = received.model
        for token_ids in body.id_lists:
            check_token_ids("prompt", token_ids, model.tokenizer.vocab_size)
        limit = self._lookup.limit_of(model.name)
        await self._stages.next_stage(model.name)
        restrictions = await self._restrictions(body, model)
        prompts: list[Prompt] = []
        reader = PromptReader(model.tokenizer)
        id_lists = [*map(pack_ids, body.id_lists)] or await reader.of_texts(body.texts, limit, "prompt")
        asked_for = model.defaults.max_tokens(body.max_tokens)
        default = model.defaults.default_max_tokens(DEFAULT_COMPLETION_TOKENS)
        logprobs = body.logprobs
        if logprobs is None and body.candidates_per_prompt > (body.n or 1) and not body.use_beam_search:
            logprobs = 0  # the best are chosen by them
        report = completion_report(body, id_lists)
        rooms = [room(packed_ids, limit, asked_for, default, "prompt", self._clamps) for packed_ids in id_lists]
        grammar = await self._grammars.of(body)
        for packed_ids, max_tokens in zip(id_lists, rooms, strict=True):
            seed = (received.seed + len(prompts) * SEED_STEP) & SEED_MASK
            params = sampling(body, model, max_tokens, logprobs, grammar, seed)
            if report.num_top is not None:
                params = params._replace(prompt_logprobs=report.num_top)
            prompts.append(Prompt(packed_ids, restrictions.applied(params)))
        if body.echo:
            texts = body.texts or await model.tokenizer.decode(body.id_lists)
            prompts = [prompt._replace(text=text) for prompt, text in zip(prompts, texts, strict=True)]
        pieces = text_pieces(body, model)
        names = LogprobNames(pieces, bool(body.return_tokens_as_token_ids))
        form = CompletionFormat(received.head, names, body.logprobs is not None, body.wants_usage, report)
        texts = [prompt.text for prompt in prompts]
        tokens = reported_tokens(report, form, names, pieces, texts)
        return GenerationBatch(received, prompts, "prompt", form, pieces, tokens=tokens)

    async def _restrictions(self, body: GenerationFields, model: ServedModel) -> Restrictions:
        """Raises HttpError 400 for what restricts the output in a way that there is not."""
        if body.model_fields_set.isdisjoint(SEARCH_OR_RESTRICT):
            return NO_RESTRICTIONS
        abilities = self._status.abilities_of(model.name)
        if body.use_beam_search:
            num_prompts = body.num_prompts if isinstance(body, CompletionRequest) else 1
            check_beams(body, num_prompts, abilities.says_ends)
        else:
            check_no_beams(body)
        return await restrictions_of(body, model.tokenizer, abilities)


def sampling(
    body: GenerationFields,
    model: ServedModel,
    max_tokens: int,
    logprobs: int | None,
    grammar: GrammarSpec | None,
    own_seed: int,
) -> SamplingParams:
    """How the tokens of one prompt are drawn. `own_seed` is used if the request has none."""
    return sampling_params(
        body,
        max_tokens=max_tokens,
        logprobs=logprobs,
        seed=own_seed if body.seed is None else body.seed,
        vocab_size=model.tokenizer.vocab_size,
        grammar=grammar,
        defaults=model.defaults,
    )
