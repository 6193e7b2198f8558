"""Remembers how far conversations were rendered and tokenised, and goes on from there.

    messages        0 .. k-1, as they were before               k .. n-1
    rendering       left out                                    resumed at a checkpoint (`resumable_template`)
    control tokens  those found before, by number               looked for
    ids             kept, up to the last section               tokenised, section by section

A conversation is found by a chain of hashes over what its messages look like from outside, and is taken for the same
one only if every text in it is.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from sys import getsizeof
from typing import Any, NamedTuple

from slipstream.router.text.control_tokens import ControlTokens
from slipstream.router.text.memory.prompt_memory import PromptMemory
from slipstream.router.text.template.chat_template import ChatTemplate, Message
from slipstream.router.text.template.loop_view import NotResumableError, Reach, Unread, WatchedMessages
from slipstream.router.text.template.resumable_template import Checkpoint, LoopRun

HASHED_CHARS = 24  # of the end of a message's last text
MAX_IN_VAIN = 8  # conversations one after the other, before most are rendered in the plain way
TRIED_ANYWAY = 32
BROKEN_SIZE = 8  # of objects with texts broken up, by that of their written form
VARIABLES, TOOLS = "", "tools"  # under which they lie behind the messages

Form = tuple[str, ...]  # a message: names of fields and values in turns, each value a text


class ControlTokensFoundError(NotResumableError):
    """The texts of this conversation need the plain way, whatever the template."""


class FoundTokens(NamedTuple):
    """The control tokens in a text up to a point, and the text behind the last one that may be part of another."""

    counts: Counter[str]
    rest: str

    def and_in(self, text: str, pattern: re.Pattern[str], longest: int, end: int) -> tuple[Counter[str], FoundTokens]:
        """Those in this text followed by `text`, and those of it up to `end` of the latter."""
        whole, end = self.rest + text, end + len(self.rest)
        counts, settled, settled_at = self.counts.copy(), self.counts.copy(), 0
        for match in pattern.finditer(whole):
            counts[match[0]] += 1
            if match.start() + longest <= end:
                settled[match[0]] += 1
                settled_at = match.end()
        settled_at = max(settled_at, end - longest + 1, 0)
        return counts, FoundTokens(settled, whole[settled_at:end])


NOTHING_FOUND = FoundTokens(Counter(), "")


@dataclass(slots=True)
class Known:
    """What is known of the first messages of a conversation, whose `forms` these are. `broken` is the checkpoint of the
    rendering with the pieces of control tokens broken up, if there are pieces. The prompt has `num_chars` up to the
    checkpoint; the first `num_id_bytes` of `packed_ids` are its sections, and `tail` is what follows them."""

    forms: list[Form]
    besides: str
    plain: Checkpoint
    found: FoundTokens
    has_pieces: bool
    broken: Checkpoint | None
    found_broken: FoundTokens
    num_chars: int
    packed_ids: bytes  # of the whole prompt
    num_id_bytes: int
    tail: str

    @property
    def num_bytes(self) -> int:
        texts = [self.besides, self.tail, self.plain.pre, *[text for form in self.forms for text in form[1::2]]]
        if self.broken is not None:
            texts.append(self.broken.pre)
        return len(self.packed_ids) + sum(map(getsizeof, texts))


@dataclass(slots=True)
class Conversation:
    """One request's conversation; `known` of its first messages, if it was there before."""

    messages: list[Message]
    variables: Mapping[str, Any]
    tools: list[Mapping[str, Any]] | None
    forms: list[Form]
    besides: str
    keys: list[tuple[Hashable, ...]]  # of the first 0, 1, ... messages
    known: Known | None
    known_key: Hashable = None


class ResumedPrompt(NamedTuple):
    """A prompt of `num_chars`: `known_ids`, followed by those of `text`. `known` is what to keep of it, once its ids
    up to `kept_chars` of the text are known."""

    num_chars: int
    known_ids: memoryview
    text: str
    known: Known | None
    kept_chars: int


class Rendering(NamedTuple):
    """What a template has written from where it was resumed. `point` is its latest checkpoint, `end` characters from
    the beginning. `counts` are the control tokens of the whole prompt, `settled` those up to the checkpoint."""

    text: str
    point: Checkpoint | None
    end: int
    counts: Counter[str]
    settled: FoundTokens


class Conversations:
    """Those of one tokenizer. `identity` stands for it in the memory's keys."""

    def __init__(
        self, template: ChatTemplate, control: ControlTokens, memory: PromptMemory, identity: Hashable
    ) -> None:
        self._template = template
        self._control = control
        self._memory = memory
        self._identity = identity
        self._num_in_vain = 0
        self._num_asked = 0
        self._looks_back = False  # at the messages that were rendered before

    @property
    def is_on(self) -> bool:
        return self._memory.is_on and self._control.is_exact

    def is_worth_trying(self) -> bool:
        """Whether to begin a conversation here: not every one if the template could not be resumed lately."""
        self._num_asked += 1
        return self._num_in_vain < MAX_IN_VAIN or self._num_asked % TRIED_ANYWAY == 0

    def open(
        self,
        messages: list[Message],
        variables: Mapping[str, Any],
        tools: list[Mapping[str, Any]] | None,
        tenant: str,
    ) -> Conversation:
        """The conversation, with what is known of it."""
        forms = list(map(form_of, messages))
        besides = repr((variables, tools))
        number = hash(besides)
        keys: list[tuple[Hashable, ...]] = [(self._identity, tenant, number)]
        for form in forms:
            number = hash((number, *map(len, form), form[-1][-HASHED_CHARS:]))
            keys.append((self._identity, tenant, number))
        for depth in range(len(forms), 0, -1):
            found: Known | None = self._memory.get(keys[depth])
            if found is not None:
                if found.besides == besides and found.forms == forms[:depth]:
                    forms[:depth] = found.forms  # the same texts need be in memory once
                    return Conversation(messages, variables, tools, forms, found.besides, keys, found, keys[depth])
                break
        return Conversation(messages, variables, tools, forms, besides, keys, None)

    def resume(self, of: Conversation) -> ResumedPrompt:
        """The prompt of a conversation that is known. Raises NotResumableError."""
        assert of.known is not None
        return self._render(of, of.known)

    def begin(self, of: Conversation) -> ResumedPrompt:
        """The prompt of a conversation of which nothing is known. Raises NotResumableError, with which a prompt may
        also be refused."""
        try:
            prompt = self._render(of, None)
        except ControlTokensFoundError:
            raise
        except NotResumableError:
            self._num_in_vain += 1
            raise
        self._num_in_vain = 0 if prompt.known is not None else self._num_in_vain + 1
        return prompt

    def keep(self, of: Conversation, known: Known) -> None:
        """Remembers what is known now, instead of what was known of the conversation before."""
        if of.known is not None:
            self._memory.drop(of.known_key)
        depth = len(known.forms)
        self._memory.put(of.keys[depth], known, known.num_bytes)

    def _render(self, of: Conversation, known: Known | None) -> ResumedPrompt:
        control = self._control
        new = of.messages if known is None else of.messages[len(known.forms) :]
        besides: list[Message] = []
        if of.variables or of.tools:
            besides = [{VARIABLES: dict(of.variables), TOOLS: of.tools}]
        looked_at = [*new, *besides] if known is None else new
        has_pieces = control.has_pieces(looked_at) or (known is not None and known.has_pieces)
        if control.disguise(looked_at, has_pieces) is not None:
            raise ControlTokensFoundError("control tokens in messages have to be disguised")
        run = self._run(of.messages, of.variables, of.tools, None if known is None else known.plain)
        plain = self._read(run, None if known is None else known.found)
        broken = None
        if has_pieces:
            if known is not None and known.broken is None:
                raise NotResumableError("there were no pieces of control tokens before")
            broken_run = self._run_broken(of, besides, known)
            broken = self._read(broken_run, None if known is None else known.found_broken)
            if plain.counts - broken.counts:
                raise ControlTokensFoundError("the prompt is to be refused")
        before, ids, tail = 0, memoryview(b""), ""
        if known is not None:
            before, tail = known.num_chars, known.tail
            ids = memoryview(known.packed_ids)[: known.num_id_bytes]
        kept = _to_keep(of, plain, broken, before + plain.end, len(ids))
        return ResumedPrompt(before + len(plain.text), ids, tail + plain.text, kept, len(tail) + plain.end)

    def _read(self, run: LoopRun, found: FoundTokens | None) -> Rendering:
        """What a run has written. `found` in what was written before it; None: it began at the first message."""
        begin = 0 if found is None else 1  # what precedes the loop was written before, too
        parts = run.parts[begin:]
        text = "".join(parts)
        point, num_parts = run.latest or (None, 0)
        end = sum(map(len, parts[: max(num_parts - begin, 0)]))
        found = NOTHING_FOUND if found is None else found
        counts, settled = found.and_in(text, self._control.pattern, self._control.longest, end)
        return Rendering(text, point, end, counts, settled)

    def _run(
        self,
        messages: list[Message],
        variables: Mapping[str, Any],
        tools: list[Mapping[str, Any]] | None,
        resumed: Checkpoint | None,
    ) -> LoopRun:
        """Raises NotResumableError."""
        reach = Reach()
        run = LoopRun(reach, len(messages), resumed)
        self._template.render_resumable(run, WatchedMessages(messages, reach), variables, tools)
        if resumed is not None and not run.has_begun:
            raise NotResumableError("the template has left out its loop")
        return run

    def _run_broken(self, of: Conversation, besides: list[Message], known: Known | None) -> LoopRun:
        """The rendering with the pieces of control tokens broken up. Messages from before are looked at only if the
        template does."""
        composed = self._control.composed
        broken_besides = self._broken_besides(of, besides)
        variables, tools = of.variables, of.tools
        if broken_besides:
            variables, tools = broken_besides[0][VARIABLES], broken_besides[0][TOOLS]
        point = None if known is None else known.broken
        if point is not None and not self._looks_back:
            unread: Message = Unread()
            try:
                return self._run(
                    [unread] * point.at + composed.broken(of.messages[point.at :]), variables, tools, point
                )
            except NotResumableError:
                self._looks_back = True
        return self._run(composed.broken(of.messages), variables, tools, point)

    def _broken_besides(self, of: Conversation, besides: list[Message]) -> list[Message]:
        """Broken up once for all conversations that have the same."""
        if not besides:
            return []
        key = (*of.keys[0], "broken")
        found: tuple[str, list[Message]] | None = self._memory.get(key)
        if found is not None and found[0] == of.besides:
            return found[1]
        broken = self._control.composed.broken(besides)
        self._memory.put(key, (of.besides, broken), BROKEN_SIZE * getsizeof(of.besides))
        return broken


def _to_keep(
    of: Conversation, plain: Rendering, broken: Rendering | None, num_chars: int, num_id_bytes: int
) -> Known | None:
    """What to remember of a rendering, and of that with the pieces broken up if there are pieces; None if one of them
    has no checkpoint within the conversation."""
    broken_point = None if broken is None else broken.point
    if plain.point is None or (broken is not None and broken_point is None):
        return None
    depth = max(plain.point.depth, broken_point.depth if broken_point is not None else 0)
    if depth > len(of.forms):
        return None
    return Known(
        forms=of.forms[:depth],
        besides=of.besides,
        plain=plain.point,
        found=plain.settled,
        has_pieces=broken is not None,
        broken=broken_point,
        found_broken=NOTHING_FOUND if broken is None else broken.settled,
        num_chars=num_chars,
        packed_ids=b"",
        num_id_bytes=num_id_bytes,
        tail="",
    )


def form_of(message: Message) -> Form:
    """A message in a form that is equal if, and only if, any template writes the same: `==` takes 1 for True, and knows
    no order of fields."""
    texts: list[str] = []
    for key, value in message.items():
        if type(value) is str:
            texts += (key, value)
        else:
            texts += (f"{key} ", repr(value))
    return tuple(texts)
