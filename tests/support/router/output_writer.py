"""Writes reasoning, content and calls as a format's description says: what a model would write."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from slipstream.router.parsers.description.elements import (
    CallId,
    CallName,
    Element,
    GemmaArguments,
    JsonArguments,
    JsonEnvelope,
    KeyElement,
    Literal,
    PythonArguments,
    Space,
    StringFlag,
    TaggedArguments,
)
from slipstream.router.parsers.description.output_format import BoundFormat, ChannelsPart, OutputFormat
from slipstream.router.parsers.events import (
    ArgumentsDelta,
    CallBegin,
    CallEnd,
    ContentDelta,
    OutputEvent,
    ReasoningDelta,
)
from slipstream.router.parsers.formats.registry import FORMATS
from slipstream.router.parsers.output_parser import OutputParser

TAGS = re.compile(r"<[^<>\n]+>|\[/?[A-Z_]+\]|｜DSML｜")
# Without other names for the same.
DISTINCT_FORMATS = tuple({replace(form, name=""): form for form in reversed(FORMATS.values())}.values())


@dataclass
class Call:
    name: str
    arguments: dict[str, Any]
    call_id: str = ""


def written(form: OutputFormat, reasoning: str = "", content: str = "", calls: Sequence[Call] = ()) -> str:
    if form.channels is not None:
        return written_channels(form.channels, reasoning, content, calls)
    text = ""
    if reasoning:
        assert form.reasoning is not None
        text += f"{form.reasoning.opens[0]}\n{reasoning}\n{form.reasoning.closes[0]}\n\n"
    text += content
    if calls:
        part = form.calls
        assert part is not None
        separator = elements_text(part.separator)
        text += "\n" if content else ""
        text += elements_text(part.opening)
        text += separator.join(elements_text(part.call, call, i) for i, call in enumerate(calls))
        text += elements_text(part.closing)
    return text


def written_channels(channels: ChannelsPart, reasoning: str, content: str, calls: Sequence[Call]) -> str:
    start = channels.start + channels.role + channels.channel
    text = f"{start}{channels.reasoning_channel}{channels.message}{reasoning}{channels.end}" if reasoning else ""
    for call in calls:
        recipient = channels.recipient + channels.recipient_prefix + call.name
        text += f"{start}{channels.call_channel}{recipient} {channels.constrain}json{channels.message}"
        text += json_text(call.arguments) + channels.call
    if content:
        text += f"{start}{channels.content_channel}{channels.message}{content}{channels.over}"
    return text.removeprefix(channels.start + channels.role)


def elements_text(elements: Iterable[Element], call: Call | None = None, index: int = 0) -> str:
    return "".join(element_text(element, call or Call("", {}), index) for element in elements)


def element_text(element: Element, call: Call, index: int) -> str:
    match element:
        case Literal():
            return element.text
        case Space():
            return element.text
        case CallName():
            return element.prefix + call.name + (f":{index}" if element.numbered else "")
        case CallId():
            return element.lead + call.call_id if call.call_id else ""
        case JsonArguments():
            return json_text(call.arguments)
        case JsonEnvelope():
            return json_text({element.name_key: call.name, element.arguments_keys[0]: call.arguments})
        case TaggedArguments():
            return "".join(tagged_text(element, key, value) for key, value in call.arguments.items())
        case PythonArguments():
            return "(" + ", ".join(f"{key}={value!r}" for key, value in call.arguments.items()) + ")"
        case GemmaArguments():
            return gemma_text(call.arguments, element.quote)


def tagged_text(element: TaggedArguments, key: str, value: Any) -> str:
    line = "\n" if element.value_on_lines else ""
    text = value if isinstance(value, str) else json_text(value)
    after_key = "".join(key_text(part, value) for part in element.after_key)
    return f"{element.before_key}{key}{after_key}{line}{text}{line}{element.after_value}{element.separator}"


def key_text(element: KeyElement, value: Any) -> str:
    if isinstance(element, StringFlag):
        return element.true if isinstance(value, str) else element.false
    return element.text


def gemma_text(value: Any, quote: str) -> str:
    match value:
        case str():
            return quote + value + quote
        case dict():
            return "{" + ",".join(f"{key}:{gemma_text(item, quote)}" for key, item in value.items()) + "}"
        case list():
            return "[" + ",".join(gemma_text(item, quote) for item in value) + "]"
        case _:
            return json_text(value)


def json_text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def bound_to(form: OutputFormat, special: bool) -> BoundFormat:
    """With all its tags as special tokens of the vocabulary, or none of them."""
    tokens = [token for text in form.texts() for token in TAGS.findall(text)] if special else []
    return form.bound(form.marker_characters(tokens))


def shown(form: BoundFormat, text: str) -> str:
    """The text as the detokenizer shows it."""
    for token in sorted(form.special, key=len, reverse=True):
        text = text.replace(token, form.special[token])
    return text


def parsed(form: BoundFormat, pieces: Iterable[str], **options: Any) -> list[OutputEvent]:
    """The events of a text in pieces, with neighbouring deltas merged."""
    parser = OutputParser(form, **options)
    events: list[OutputEvent] = []
    for piece in pieces:
        events += parser.feed(piece)
    return merged([*events, *parser.finish()])


def merged(events: Iterable[OutputEvent]) -> list[OutputEvent]:
    found: list[OutputEvent] = []
    for event in events:
        match found[-1] if found else None, event:
            case ContentDelta(before), ContentDelta(text):
                found[-1] = ContentDelta(before + text)
            case ReasoningDelta(before), ReasoningDelta(text):
                found[-1] = ReasoningDelta(before + text)
            case ArgumentsDelta(index, before), ArgumentsDelta(other, text) if index == other:
                found[-1] = ArgumentsDelta(index, before + text)
            case _:
                found.append(event)
    return found


@dataclass
class Answer:
    content: str = ""
    reasoning: str = ""
    calls: list[tuple[str, str]] = field(default_factory=list)  # name and arguments as JSON
    call_ids: list[str] = field(default_factory=list)


def answer_of(events: Iterable[OutputEvent]) -> Answer:
    """The whole answer. Checks that calls begin and end in their order."""
    answer = Answer()
    open_call: int | None = None
    for event in events:
        match event:
            case ContentDelta(text):
                answer.content += text
            case ReasoningDelta(text):
                answer.reasoning += text
            case CallBegin(index, name, call_id):
                assert open_call is None
                assert index == len(answer.calls)
                open_call = index
                answer.calls.append((name, ""))
                answer.call_ids.append(call_id)
            case ArgumentsDelta(index, text):
                assert open_call == index
                answer.calls[index] = (answer.calls[index][0], answer.calls[index][1] + text)
            case CallEnd(index):
                assert open_call == index
                open_call = None
    assert open_call is None
    return answer


def read(name: str, text: str, special: bool | None = None, **options: Any) -> Answer:
    """The answer in a text. It is the same whether the vocabulary has the format's tags as special tokens or not, where
    `special` does not say."""
    answers = []
    for is_special in (True, False) if special is None else (special,):
        bound = bound_to(FORMATS[name], is_special)
        pieces = shown(bound, text)
        events = parsed(bound, [pieces], **options)
        assert parsed(bound, list(pieces), **options) == events
        answers.append(answer_of(events))
    assert answers[0] == answers[-1]
    return answers[0]


def schemas_of(calls: Sequence[Call]) -> Mapping[str, Any]:
    """Schemas of parameters that say the types of these calls' arguments, by name."""
    return {
        call.name: {
            "type": "object",
            "properties": {key: {"type": type_of(value)} for key, value in call.arguments.items()},
        }
        for call in calls
    }


def type_of(value: Any) -> str:
    names = {str: "string", bool: "boolean", int: "integer", float: "number", list: "array", dict: "object"}
    return names.get(type(value), "null")
