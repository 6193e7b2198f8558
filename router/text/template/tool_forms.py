"""The form in which a chat template takes tools and calls. As with contents, it is found out by rendering: a name that
does not come out was given in the wrong form.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from itertools import chain, product
from string import ascii_letters, digits
from typing import Any, NamedTuple, TypeAlias

from slipstream.router.text.template.chat_template import ChatTemplate, ChatTemplateError, Message
from slipstream.router.text.template.content_form import ContentForms, text_part
from slipstream.router.text.template.tools_in_text import with_calls_as_text, with_definitions
from slipstream.router.text.template.turn import Call, Turn

JsonObject: TypeAlias = Mapping[str, Any]

# Letters only, as in the trial of contents; each is in no other.
DEFINED, ASKED, SYSTEM = "slipstreamtool", "slipstreamasked", "slipstreamsystem"
NAMES, KEY, VALUE, RESULTS = (
    ("slipstreamcall", "slipstreamagain"),
    "slipstreamkey",
    "slipstreamvalue",
    "slipstreamresult",
)
GIVEN = re.compile("|".join((DEFINED, ASKED, SYSTEM, *NAMES, KEY, VALUE, RESULTS)), re.IGNORECASE)
FUNCTION: dict[str, Any] = {
    "name": DEFINED,
    "description": DEFINED,
    "parameters": {
        "type": "object",
        "properties": {KEY: {"type": "string", "description": KEY}},
        "required": [KEY],
    },
}
TRIED_TOOL: dict[str, Any] = {"type": "function", "function": FUNCTION}
USER: Message = {"role": "user", "content": ASKED}
USUAL_ID = "call_{}23456789abcdefghijklmno"
SHORT_ID_CHARS = 9  # Mistral's templates take ids of nine letters and digits, and no others
SHORT_ID = "{}slipcall"
ALPHABET = digits + ascii_letters


class CallForm(NamedTuple):
    """`has_wrapper`: name and arguments lie in an object `function`, as in OpenAI's API. `takes_objects`: arguments are
    an object, and not its JSON. `empty_content` is that of a message that has calls alone. With `one_at_a_time` a
    message may have one call. `takes_reasoning`: beside calls there may be both content and reasoning."""

    has_wrapper: bool = True
    takes_objects: bool = True
    empty_content: str | None = ""
    has_short_ids: bool = False
    one_at_a_time: bool = False
    takes_reasoning: bool = True

    def of(self, call: Call) -> dict[str, Any]:
        """A call as the template takes it. Arguments that are no object are a text in any case."""
        arguments: Any = call.arguments
        if self.takes_objects:
            found = call.as_object()
            arguments = call.arguments if found is None else found
        function = {"name": call.name, "arguments": arguments}
        head = {"id": self.id_of(call.id), "type": "function"}
        return head | ({"function": function} if self.has_wrapper else function)

    def id_of(self, call_id: str) -> str:
        """An id that the template takes; a function of the client's, so that a prompt stays the same."""
        if not self.has_short_ids or is_short_id(call_id):
            return call_id
        number = int.from_bytes(blake2b(call_id.encode("utf-8", "surrogatepass"), digest_size=8).digest())
        return "".join([ALPHABET[number // len(ALPHABET) ** place % len(ALPHABET)] for place in range(SHORT_ID_CHARS)])


class ToolForms(NamedTuple):
    """`calls` None: the template does not show calls or their results, so that they become text. `takes_functions`:
    tools are the functions alone, without OpenAI's object around each. `needs_description`: it fails for a tool without
    one. `needs_pause`: words of the user follow a result only behind an assistant's message, be it empty. `rendered` is
    what the template itself wrote when it was tried out."""

    knows_tools: bool = False
    calls: CallForm | None = None
    takes_system: bool = True
    takes_functions: bool = False
    needs_description: bool = False
    rendered: str = ""
    needs_pause: bool = False

    @classmethod
    def of(cls, template: ChatTemplate) -> ToolForms:
        """What a template takes."""
        return TrialOfTools(template).forms()

    @property
    def asked(self) -> list[Message] | None:
        """A conversation in which the template takes a result next; None if it takes none."""
        return None if self.calls is None else [USER, _calling(self.calls, 1)]

    def conversation(
        self, turns: Sequence[Turn], tools: Sequence[JsonObject], example: str
    ) -> tuple[list[Turn], list[JsonObject] | None]:
        """The conversation, and the tools that the template gets: None where there are none, or they stand in the text,
        with `example` as the form of a call."""
        made = list(turns)
        if self.calls is None:
            made = with_calls_as_text(made)
        elif self.calls.one_at_a_time:
            made = one_at_a_time(made)
        if self.needs_pause:
            made = with_pauses(made)
        if not tools:
            return made, None
        if not self.knows_tools:
            return with_definitions(made, tools, example, self.takes_system), None
        return made, [self._tool(tool) for tool in tools]

    def _tool(self, tool: JsonObject) -> JsonObject:
        function = tool["function"]
        if self.needs_description and "description" not in function:
            function = {"name": function["name"], "description": "", **function}
        return function if self.takes_functions else {**tool, "function": function}

    def message(self, turn: Turn, contents: ContentForms, reasoning_field: str | None) -> Message:
        """A message as the template takes it."""
        calls = self.calls or CallForm()
        message: Message = {"role": turn.role, "content": contents.of_role(turn.role).of(turn.content)}
        if turn.calls:
            if not turn.content and isinstance(message["content"], str):
                message["content"] = calls.empty_content
            message["tool_calls"] = [calls.of(call) for call in turn.calls]
        if turn.name is not None:
            message["name"] = turn.name
        if turn.call_id is not None:
            message["tool_call_id"] = calls.id_of(turn.call_id)
        if turn.reasoning and reasoning_field is not None and (calls.takes_reasoning or not (turn.calls and turn.text)):
            message[reasoning_field] = turn.reasoning
        return message


NO_TOOLS = ToolForms()


class TrialOfTools:
    """Renders conversations with tools, and keeps what the template itself wrote in `rendered`."""

    def __init__(self, template: ChatTemplate) -> None:
        self._template = template
        self.rendered: list[str] = []
        self._tools = [TRIED_TOOL]
        takes_text = any(ASKED in self._render([USER], tools) for tools in (None, [TRIED_TOOL]))
        self._user = USER if takes_text else {"role": "user", "content": [text_part(ASKED)]}

    def forms(self) -> ToolForms:
        takes_objects = self._shows_tool(TRIED_TOOL)
        takes_functions = not takes_objects and self._shows_tool(FUNCTION)
        tool = FUNCTION if takes_functions else TRIED_TOOL
        bare = {key: value for key, value in FUNCTION.items() if key != "description"}
        needs_description = not self._shows_tool(bare if takes_functions else {**TRIED_TOOL, "function": bare})
        self._tools = [tool]
        takes_system = any(
            SYSTEM in self._render([{"role": "system", "content": content}, self._user], tools)
            for content in (SYSTEM, [text_part(SYSTEM)])
            for tools in (None, self._tools)
        )
        calls = self._call_form()
        knows_tools = takes_objects or takes_functions
        needs_pause = calls is not None and self._needs_pause(calls)
        rendered = "\0".join(self.rendered)
        return ToolForms(knows_tools, calls, takes_system, takes_functions, needs_description, rendered, needs_pause)

    def _shows_tool(self, tool: JsonObject) -> bool:
        return DEFINED in self._render([self._user], [tool])

    def _call_form(self) -> CallForm | None:
        """The first form in which a call and its result come out."""
        contents = (RESULTS, [text_part(RESULTS)])
        for has_short_ids, has_wrapper, takes_objects, empty in product(
            (False, True), (True, False), (True, False), ("", None)
        ):
            form = CallForm(has_wrapper, takes_objects, empty, has_short_ids)
            for content in contents:
                if self._shows(form, 1, content):
                    return form._replace(
                        one_at_a_time=not self._shows(form, 2, content), takes_reasoning=self._takes_reasoning(form)
                    )
        return None

    def _takes_reasoning(self, form: CallForm) -> bool:
        field = self._template.reasoning_field
        message = _calling(form, 1) | {"content": ASKED} | ({} if field is None else {field: VALUE})
        return bool(self._render([self._user, message], self._tools))

    def _needs_pause(self, form: CallForm) -> bool:
        """Whether the template refuses words of the user behind a result, and takes them behind a pause."""
        contents = (SYSTEM, [text_part(SYSTEM)])
        result: Message = {"role": "tool", "content": RESULTS, "tool_call_id": _id(form, 0), "name": NAMES[0]}
        answered = [self._user, _calling(form, 1), result]
        if any(self._shows_words([*answered, {"role": "user", "content": content}]) for content in contents):
            return False
        pause: Message = {"role": "assistant", "content": ""}
        return any(self._shows_words([*answered, pause, {"role": "user", "content": content}]) for content in contents)

    def _shows_words(self, messages: list[Message]) -> bool:
        return SYSTEM in self._render(messages, self._tools)

    def _shows(self, form: CallForm, num_calls: int, content: Any) -> bool:
        results: list[Message] = [
            {"role": "tool", "content": content, "tool_call_id": _id(form, number), "name": NAMES[number]}
            for number in range(num_calls)
        ]
        text = self._render([self._user, _calling(form, num_calls), *results], self._tools)
        is_escaped = rf"\"{KEY}" in text or (form.takes_objects and f"'{KEY}'" in text)  # printed, not understood
        return not is_escaped and all(word in text for word in (*NAMES[:num_calls], VALUE, RESULTS, ASKED))

    def _render(self, messages: list[Message], tools: Sequence[JsonObject] | None = None) -> str:
        try:
            text = self._template.render(messages, tools=tools)
        except ChatTemplateError:
            return ""
        self.rendered.append(GIVEN.sub("\0", text))
        return text


def is_short_id(call_id: str) -> bool:
    return len(call_id) == SHORT_ID_CHARS and call_id.isascii() and call_id.isalnum()


def one_at_a_time(turns: Sequence[Turn]) -> list[Turn]:
    """The conversation in which each message has one call, followed by its result. An id stands for the calls of one
    message only: clients give the same ones again in the next."""
    made: list[Turn] = []
    at = 0
    while at < len(turns):
        turn = turns[at]
        at += 1
        if len(turn.calls) < 2:
            made.append(turn)
            continue
        results: dict[str | None, deque[Turn]] = {}
        while at < len(turns) and turns[at].role == "tool":
            results.setdefault(turns[at].call_id, deque()).append(turns[at])
            at += 1
        for number, call in enumerate(turn.calls):
            content = turn.content if number == 0 else None
            reasoning = turn.reasoning if number == 0 else None
            made.append(turn._replace(content=content, calls=(call,), reasoning=reasoning))
            if results.get(call.id):
                made.append(results[call.id].popleft())
        made += chain.from_iterable(results.values())
    return made


def with_pauses(turns: Sequence[Turn]) -> list[Turn]:
    """The conversation in which the assistant says nothing between a result and words of the user."""
    made: list[Turn] = []
    for turn in turns:
        if turn.role == "user" and made and made[-1].role == "tool":
            made.append(Turn("assistant", ""))
        made.append(turn)
    return made


def _calling(form: CallForm, num_calls: int) -> Message:
    calls = [Call(_id(form, number), NAMES[number], f'{{"{KEY}": "{VALUE}"}}') for number in range(num_calls)]
    return {"role": "assistant", "content": form.empty_content, "tool_calls": [form.of(call) for call in calls]}


def _id(form: CallForm, number: int) -> str:
    return (SHORT_ID if form.has_short_ids else USUAL_ID).format(number + 1)
