"""How the outputs of a chat request are read: as text, or by the parser of its model."""

from __future__ import annotations

from slipstream.router.api.generation.answer.parsed_output import OutputReading
from slipstream.router.api.openai.body.tool_grammars import RequestTool
from slipstream.router.api.openai.schema.chat_request import ChatRequest
from slipstream.router.api.openai.schema.generation_fields import GenerationFields
from slipstream.router.api.openai.schema.tools import ToolUse
from slipstream.router.catalog.served_model import ServedModel
from slipstream.router.http.http_error import HttpError
from slipstream.router.parsers.detection import begins_in_reasoning
from slipstream.router.parsers.grammar.output_grammar import ReasoningState
from slipstream.router.text.detokenizer import PieceTable


def check_tools(use: ToolUse, model: ServedModel) -> None:
    """Raises HttpError 400 if calls are to be read, and the model's are not. A model without a chat template takes no
    chat at all, which is said when its prompt is made."""
    if not use.reads_calls or model.tokenizer.chat_template is None:
        return
    if model.outputs is None or not model.outputs.reads_calls:
        message = (
            f"'{use.field}' cannot be used with {model.name!r}: model.tool_call_parser is none, calls are not read."
        )
        raise HttpError(400, message, param=use.field, code="unsupported_parameter")


def reading_of(body: ChatRequest, model: ServedModel, reasoning: ReasoningState) -> OutputReading | None:
    """None: the outputs are text, as those of a model whose reasoning is not known are where calls are not read."""
    use, outputs = body.tool_use, model.outputs
    reads_calls = use is not None and use.reads_calls
    if outputs is None or outputs.bound_format is None or not (reads_calls or outputs.reads_reasoning):
        return None
    return OutputReading(
        outputs.bound_format,
        outputs.pieces(True, body.skip_special_tokens is False),
        {tool.name: tool.parameters or {} for tool in use.tools} if use is not None else {},
        reasoning == "begun",
        reads_calls,
        use.max_calls if use is not None else None,
        body.include_reasoning is not False,
    )


def request_tools(use: ToolUse) -> list[RequestTool]:
    """The tools that may be called."""
    if not use.reads_calls:
        return []
    allowed = None if use.allowed is None else set(use.allowed)
    return [
        RequestTool(tool.name, tool.parameters, use.place_of(index), tool.is_strict or use.is_named)
        for index, tool in enumerate(use.tools)
        if allowed is None or tool.name in allowed
    ]


def reasoning_state(model: ServedModel, packed_ids: bytes) -> ReasoningState:
    """Whether the outputs begin within reasoning that the prompt has opened, or may begin with it."""
    outputs = model.outputs
    if outputs is None or outputs.format is None or not outputs.reads_reasoning:
        return "over"
    form, tail = outputs.format, model.tokenizer.tail(packed_ids)
    if begins_in_reasoning(form, tail):
        return "begun"
    closes = form.reasoning.closes if form.reasoning is not None else ()
    return "over" if tail.rstrip().endswith(closes) else "possible"


def check_can_continue(model: ServedModel, prompt_ids: bytes) -> None:
    """Raises HttpError 400 if an output behind this prompt does not begin with content, so that a client's text cannot
    be its beginning."""
    form = model.outputs.format if model.outputs is not None else None
    if reasoning_state(model, prompt_ids) == "begun" or (form is not None and form.channels is not None):
        message = (
            f"The last message cannot be continued: the outputs of {model.name!r} begin with reasoning. Leave out the "
            "last message of the 'assistant', or turn thinking off where the model can do without it."
        )
        raise HttpError(400, message, param="messages", code="unsupported_parameter")


def text_pieces(body: GenerationFields, model: ServedModel) -> PieceTable:
    """What tokens contribute to an output that is text."""
    if body.skip_special_tokens is not False:
        return model.tokenizer.pieces
    if model.outputs is None:
        return model.tokenizer.pieces_showing({}, shows_special=True)
    return model.outputs.pieces(False, shows_special=True)
