"""How the outputs of a chat request are read: as text, or by the parser of its model."""

from __future__ import annotations

from slipstream.router.api.openai.answer.parsed_output import OutputReading
from slipstream.router.api.openai.body.schema import ChatRequest, GenerationFields
from slipstream.router.api.openai.body.tools import ToolUse
from slipstream.router.catalog.model_outputs import ModelOutputs
from slipstream.router.catalog.served_model import ServedModel
from slipstream.router.http.http_error import HttpError
from slipstream.router.parsers.detection import begins_in_reasoning
from slipstream.router.text.detokenizer import PieceTable


def check_tools(use: ToolUse | None, model: ServedModel) -> None:
    """Raises HttpError 400 if calls are to be read, and the model's are not."""
    if use is not None and use.reads_calls and not (model.outputs is not None and model.outputs.reads_calls):
        why = "its calls are not read (model.tool_call_parser is none)"
        message = f"'{use.field}' cannot be used with {model.name!r}: {why}."
        raise HttpError(400, message, param=use.field, code="unsupported_parameter")


def reading_of(body: ChatRequest, model: ServedModel, packed_ids: bytes) -> OutputReading | None:
    """None: the outputs are text, as those of a model whose reasoning is not known are where calls are not read."""
    use, outputs = body.tool_use, model.outputs
    reads_calls = use is not None and use.reads_calls
    if outputs is None or outputs.form is None or not (reads_calls or outputs.reads_reasoning):
        return None
    return OutputReading(
        outputs.form,
        outputs.pieces(True, body.skip_special_tokens is False),
        {tool.name: tool.parameters or {} for tool in use.tools} if use is not None else {},
        begins_within(outputs, model, packed_ids),
        reads_calls,
        use.max_calls if use is not None else None,
        body.include_reasoning is not False,
    )


def begins_within(outputs: ModelOutputs, model: ServedModel, packed_ids: bytes) -> bool:
    """Whether the outputs begin within reasoning that the prompt has opened."""
    if outputs.form is None or not outputs.reads_reasoning:
        return False
    return begins_in_reasoning(outputs.form.form, model.tokenizer.tail(packed_ids))


def text_pieces(body: GenerationFields, model: ServedModel) -> PieceTable:
    """What tokens contribute to an output that is text."""
    if body.skip_special_tokens is not False:
        return model.tokenizer.pieces
    if model.outputs is None:
        return model.tokenizer.pieces_showing({}, shows_special=True)
    return model.outputs.pieces(False, shows_special=True)
