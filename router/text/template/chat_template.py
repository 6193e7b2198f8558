"""Renders chat messages to prompt text with the Jinja template that comes with a model."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from datetime import datetime
from functools import cached_property
from typing import Any, NoReturn

from jinja2 import Template, TemplateError, nodes, pass_context
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context, LoopContext, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment, safe_range

from slipstream.router.text.template.loop_view import NotResumableError
from slipstream.router.text.template.resumable_template import RUN, CannotResumeError, LoopRun, make_resumable, resumed
from slipstream.router.text.template.steps import CALL_STEPS, STEPS, StepsLeft

Message = dict[str, Any]

CALLERS_VARIABLES = ("_loop_vars", "_block_vars")  # which Jinja adds to calls, for functions that ask for the context
# `message.reasoning_content` as in Qwen's and DeepSeek's templates, or `message["reasoning"]`; `message.thinking` of
# gpt-oss. `thinking` alone is a variable of others.
REASONING = re.compile(r"""(?:\.|\[\s*['"]|['"])(reasoning_content|reasoning)\b|message(?:\.|\[\s*['"])(thinking)\b""")
TEMPLATE_ERRORS = (
    TemplateError,
    TypeError,
    ValueError,
    ArithmeticError,
    LookupError,
    AttributeError,
    RecursionError,
)
DICT_ATTRIBUTES = frozenset(dir(dict))  # which hide fields of the same name


# Words of a trial: letters only, because templates may trim or escape.
ASKED, FIRST, LATER = "slipstreamasked", "slipstreamfirst", "slipstreamlater"


class ChatTemplateError(ValueError):
    """The template refused the messages; the text is the template's own."""


@pass_context
def counted(context: Context, items: Iterable[Any]) -> Iterable[Any]:
    """The items of a loop. Its iterations are counted when it begins, where their number is known then."""
    steps: StepsLeft = context[STEPS]
    if isinstance(items, Sized):
        steps.take(1 + len(items))
        return items
    return counted_one_by_one(steps, items)


def counted_one_by_one(steps: StepsLeft, items: Iterable[Any]) -> Iterator[Any]:
    for item in items:
        steps.take(1)
        yield item


@pass_context
def counted_range(context: Context, *limits: int) -> range:
    """Counted where it is made, because filters go through its numbers without a loop of the template."""
    numbers = safe_range(*limits)
    context[STEPS].take(len(numbers))
    return numbers


class GenerationBlock(Extension):
    """`{% generation %}` marks the assistant's words for training; when serving, its content is rendered as it is."""

    tags = {"generation"}  # noqa: RUF012 - Jinja's interface

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        # A scope of its own, as in transformers: what is set within is not seen behind.
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)


class ChatEnvironment(ImmutableSandboxedEnvironment):
    """The sandbox, in which the steps of a rendering are counted, and the fields of messages are found at once:
    `message.role` is first tried as an attribute elsewhere, and each miss is an exception. A template's own macros are
    called without asking whether they are safe and what they want to be given."""

    def getattr(self, obj: Any, attribute: str) -> Any:
        if type(obj) is dict and attribute in obj and attribute not in DICT_ATTRIBUTES:
            return obj[attribute]
        return super().getattr(obj, attribute)

    def call(self, context: Context, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        context[STEPS].take(CALL_STEPS)
        if type(obj) is Macro:
            for name in CALLERS_VARIABLES:
                kwargs.pop(name, None)
            return obj(context.eval_ctx, *args, **kwargs)
        if isinstance(obj, LoopContext) and args:  # a loop that goes deeper (`recursive`)
            args = (counted(context, args[0]), *args[1:])
        return super().call(context, obj, *args, **kwargs)


class ChatTemplate:
    """Renders in the sandbox and with the functions that `transformers.apply_chat_template` offers to templates
    (trim_blocks, lstrip_blocks, break and continue, tojson, raise_exception, strftime_now).

    `special_tokens` are the variables bos_token, eos_token, ... Raises ValueError if the template is not valid Jinja.
    """

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        self._environment = new_environment()
        try:
            self._template = compiled(self._environment, self._environment.parse(source))
        except TemplateError as error:
            raise ValueError(f"the chat template is not valid: {error}") from error
        # Jinja copies the globals for each rendering; copying its ChainMap takes longer than rendering a short chat.
        self._template.globals = dict(self._template.globals)
        self._resumable: Template | None = None
        self._may_be_resumable = True
        self._special_tokens = dict(special_tokens)
        self.source = source
        self.knows_developer_role = "developer" in source
        self.reasoning_field = reasoning_field(source)

    @cached_property
    def shows_later_system(self) -> bool:
        """Whether a system's message that comes after others stands in the prompt beside a first one. Some templates
        leave it out, refuse it, or put it in the place of the first. It is tried out, behind a user's message and
        before one."""
        for form in (str, text_parts):
            first, later = ({"role": "system", "content": form(word)} for word in (FIRST, LATER))
            asked, answered = ({"role": role, "content": form(ASKED)} for role in ("user", "assistant"))
            try:
                shown = [self.render(chat) for chat in ([first, asked, later], [first, asked, later, answered, asked])]
            except ChatTemplateError:
                continue
            if all(FIRST in text and LATER in text for text in shown):
                return True
        return False

    def render(
        self,
        messages: Sequence[Message],
        variables: Mapping[str, Any] | None = None,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
    ) -> str:
        """The prompt. `variables` are more of what the template may look at; they never replace its own. `tools` are
        OpenAI's objects. Raises ChatTemplateError if the template cannot take these messages."""
        try:
            return self._template.render(
                variables or (),
                messages=messages,
                tools=tools,
                documents=None,
                add_generation_prompt=add_generation_prompt,
                **self._special_tokens,
                **{STEPS: StepsLeft()},
            )
        except TEMPLATE_ERRORS as error:
            # A template is a program that runs on the client's data: whatever it raises is the fault of the messages.
            raise ChatTemplateError(str(error)) from error

    def render_resumable(
        self,
        run: LoopRun,
        messages: Sequence[Message],
        variables: Mapping[str, Any] | None,
        tools: Sequence[Mapping[str, Any]] | None,
    ) -> None:
        """As `render`, into the parts of the run: all of it, or what follows the checkpoint that it resumes. Raises
        NotResumableError if this cannot be done, whatever the reason; `render` says which it is."""
        try:
            template = self._resumable_template()
            context = template.new_context(
                dict(
                    variables or (),
                    messages=messages,
                    tools=tools,
                    documents=None,
                    add_generation_prompt=True,
                    **self._special_tokens,
                    **{STEPS: StepsLeft(), RUN: run},
                )
            )
            try:
                for part in template.root_render_func(context):
                    run.parts.append(part)
            finally:
                # Macros and their context hold each other, and the messages, until the garbage collector comes by.
                context.vars.clear()
                context.parent.clear()
        except NotResumableError:
            raise
        except TEMPLATE_ERRORS as error:
            raise NotResumableError(str(error)) from error

    def _resumable_template(self) -> Template:
        """Raises NotResumableError if the template cannot be resumed."""
        if self._resumable is None:
            if not self._may_be_resumable:
                raise NotResumableError("the template cannot be resumed")
            program = self._environment.parse(self.source)
            try:
                make_resumable(program, self._environment)
                self._resumable = compiled(self._environment, program)
            except (CannotResumeError, TemplateError) as error:
                self._may_be_resumable = False
                raise NotResumableError(str(error)) from error
            self._resumable.globals = dict(self._resumable.globals)
        return self._resumable


def new_environment() -> ChatEnvironment:
    """The sandbox with what templates may use."""
    environment = ChatEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[GenerationBlock, loopcontrols])
    environment.filters["tojson"] = to_json
    environment.filters[counted.__name__] = counted
    environment.globals["range"] = counted_range
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = strftime_now
    return environment


def compiled(environment: ChatEnvironment, program: nodes.Template) -> Template:
    """The template, with its loops counted; one whose messages come from `resumed` counts itself."""
    for loop in program.find_all(nodes.For):
        if not (isinstance(loop.iter, nodes.Filter) and loop.iter.name == resumed.__name__):
            loop.iter = nodes.Filter(loop.iter, counted.__name__, [], [], None, None, lineno=loop.lineno)
    return environment.from_string(program)


def reasoning_field(source: str) -> str | None:
    """The field of a message in which a template looks for what an assistant thought; None: it does not look."""
    found = REASONING.search(source)
    return (found[1] or found[2]) if found is not None else None


def text_parts(text: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": text}]


def raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


def strftime_now(form: str) -> str:
    return datetime.now().strftime(form)


def to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """The `tojson` filter. Jinja's own escapes HTML characters, which must not happen in a prompt."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
