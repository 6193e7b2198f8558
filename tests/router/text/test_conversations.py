"""Long conversations are rendered and tokenised from where they were before, to the same ids."""

import asyncio
import json
import random
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from slipstream.router.protocol.messages import pack_ids
from slipstream.router.text.control_tokens import ControlTokenError
from slipstream.router.text.conversations import form_of
from slipstream.router.text.encoding import encode_pool
from slipstream.router.text.template.chat_template import ChatTemplate, ChatTemplateError
from slipstream.router.text.template.loop_view import NotResumableError, Reach, Unread, WatchedMessages
from slipstream.router.text.template.resumable_template import LoopRun
from slipstream.router.text.tokenizer import Tokenizer, TokenizerFiles

DEMO = Path(__file__).parents[3] / "models" / "slipstream-demo"
CHATML = "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n"
RESUMED = {
    "demo": (DEMO / "chat_template.jinja").read_text(),
    "plain": "{% for m in messages %}" + CHATML + "{% endfor %}<|im_start|>assistant\n",
    "tools first": "{{ tools | tojson }}{% for m in messages %}"
    + CHATML
    + "{% if m.tool_calls %}{% for call in m.tool_calls %}{{ loop.index }}{{ call | tojson }}"
    "{% if not loop.last %},{% endif %}{% endfor %}{% endif %}{% endfor %}",
    "neighbours": "{% for m in messages %}{% if loop.previtem is defined and loop.previtem.role == m.role %}+"
    "{% endif %}" + CHATML + "{% if loop.nextitem is not defined or loop.nextitem.role != 'tool' %}</r>{% endif %}"
    "{% endfor %}",
    "last": "{% for m in messages %}{% if loop.last %}LAST {% elif loop.first %}FIRST {% endif %}"
    "{{ loop.index0 }}" + CHATML + "{% endfor %}",
    "by index": "{% for m in messages %}{% if loop.index0 and messages[loop.index0 - 1].role == 'tool' %}after"
    "{% endif %}" + CHATML + "{% endfor %}",
    "namespace": "{% set ns = namespace(calls=0, open=false) %}{% for m in messages %}"
    "{% if m.role == 'tool' %}{% set ns.calls = ns.calls + 1 %}{{ ns.calls }}{% endif %}"
    "{% if m.role == 'user' and not ns.open %}{% set ns.open = true %}[{% endif %}" + CHATML + "{% endfor %}"
    "{{ ns.calls }}",
    "slice": "{% if messages[0].role == 'system' %}{% set rest = messages[1:] %}{{ messages[0].content }}"
    "{% else %}{% set rest = messages %}{% endif %}{% for m in rest %}" + CHATML + "{% endfor %}",
    "earlier thinking": "{% set ns = namespace(last=0) %}{% for m in messages %}{% if m.role == 'user' %}"
    "{% set ns.last = loop.index0 %}{% endif %}{% endfor %}{% for m in messages %}"
    "{% set text = m.content %}{% if m.role == 'assistant' and loop.index0 < ns.last and '</think>' in text %}"
    "{% set text = text.split('</think>')[-1] %}{% endif %}{{ m.role }}: {{ text }} {% if loop.index0 > ns.last %}"
    "*{% endif %}<|im_end|>{% endfor %}",
    "macro": "{% macro shown(m) %}{{ prefix }}{{ m.content | trim }}{% endmacro %}{% set prefix = '>' %}"
    "{% for m in messages %}{{ shown(m) }}<|im_end|>{% endfor %}",
    "variable": "{% for m in messages %}{% if thinking %}T{% endif %}" + CHATML + "{% endfor %}{{ mood }}",
    "break": "{% for m in messages %}{% if m.content == 'stop' %}{% break %}{% endif %}{% if not m.content %}"
    "{% continue %}{% endif %}" + CHATML + "{% endfor %}",
}
NOT_RESUMED = {
    "future": "{% for m in messages %}{{ m.content }}{% for n in messages[loop.index:] %}{{ n.role[0] }}{% endfor %}"
    "<|im_end|>{% endfor %}",
    "length": "{% for m in messages %}{{ loop.length }}" + CHATML + "{% endfor %}",
    "last of all": "{% for m in messages %}{{ messages[-1].role }}" + CHATML + "{% endfor %}",
    "no loop": "{{ messages | map(attribute='content') | join('<|im_end|>') }}",
    "cycle": "{% for m in messages %}{{ loop.cycle('a', 'b') }}" + CHATML + "{% endfor %}",
    "filtered": "{% for m in messages if m.role != 'tool' %}" + CHATML + "{% endfor %}",
    "else": "{% for m in messages %}" + CHATML + "{% else %}nothing{% endfor %}",
    "date": "{% for m in messages %}{{ strftime_now('%Y') }}" + CHATML + "{% endfor %}",
    "joiner": "{% set sep = joiner(', ') %}{% for m in messages %}{{ sep() }}" + CHATML + "{% endfor %}",
    "hidden state": "{% set ns = namespace(seen={}) %}{% for m in messages %}"
    "{% set ns.seen = dict(ns.seen, **{m.role: 1}) %}{{ ns.seen | length }}" + CHATML + "{% endfor %}",
}
PIECES = ["hello", "x < y && z > 1", "<think>why</think>", "  spaced ", "line\nline", "naïve ☃", "</b>", "<|im", "stop"]
TOOLS = [
    {"type": "function", "function": {"name": f"tool_{n}", "description": "a <b>", "parameters": {}}} for n in (1, 2)
]


class Growing:
    """A conversation that grows, and is sometimes edited."""

    def __init__(self, seed: int, num_words: int = 5) -> None:
        self.draw = random.Random(seed)
        self._num_words = num_words
        self.messages: list[dict[str, Any]] = []
        if self.draw.random() < 0.7:
            self.messages.append({"role": "system", "content": self.text()})
        self.messages.append({"role": "user", "content": self.text()})

    def text(self) -> str:
        return " ".join(self.draw.choices(PIECES, k=self.draw.randint(0, self._num_words)))

    def grow(self) -> None:
        if self.draw.random() < 0.75:
            value = self.draw.choice([1, 1.0, True, None, {"b": 1, "a": 2}, {"a": 2, "b": 1}, "x"])
            call = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": {"v": value}}}
            self.messages += [
                {"role": "assistant", "content": self.text(), "tool_calls": [call]},
                {"role": "tool", "content": self.text(), "tool_call_id": "call_1"},
            ]
        else:
            self.messages += [{"role": "assistant", "content": self.text()}, {"role": "user", "content": self.text()}]

    def edit(self) -> None:
        at = self.draw.randrange(len(self.messages))
        self.messages[at] = self.messages[at] | {"content": self.text() + "!"}


def rendered(
    template: ChatTemplate, run: LoopRun, messages: list[dict[str, Any]], variables: Mapping[str, Any], tools: Any
) -> str:
    template.render_resumable(run, WatchedMessages(messages, run.reach), variables, tools)
    return "".join(run.parts)


@pytest.mark.parametrize("name", RESUMED)
def test_a_resumed_rendering_writes_what_a_whole_one_does(name: str) -> None:
    template, num_resumed = ChatTemplate(RESUMED[name], {"bos_token": "<s>"}), 0
    for seed in range(12):
        chat = Growing(seed)
        tools = chat.draw.choice([None, TOOLS])
        points: list[tuple[list[dict[str, Any]], Any, str]] = []
        for _ in range(10):
            messages = list(chat.messages)
            want = template.render(messages, {"mood": "m"}, tools=tools)
            run = LoopRun(Reach(), len(messages))
            assert rendered(template, run, messages, {"mood": "m"}, tools) == want
            for known, point, before in points:
                if [*map(form_of, known[: point.depth])] == [*map(form_of, messages[: point.depth])]:
                    resumed = LoopRun(Reach(), len(messages), point)
                    try:
                        rendered(template, resumed, messages, {"mood": "m"}, tools)
                    except NotResumableError:
                        continue
                    assert before + "".join(resumed.parts[1:]) == want
                    num_resumed += 1
            if run.latest is not None:
                point, num_parts = run.latest
                points.append((messages, point, "".join(run.parts[:num_parts])))
            chat.grow()
            if chat.draw.random() < 0.2:
                chat.edit()
    assert num_resumed > 100


@pytest.mark.parametrize("name", NOT_RESUMED)
def test_a_template_that_depends_on_more_is_not_resumed(name: str) -> None:
    template, chat = ChatTemplate(NOT_RESUMED[name], {}), Growing(1)
    run = LoopRun(Reach(), len(chat.messages))
    try:
        rendered(template, run, chat.messages, {}, None)
    except NotResumableError:
        return
    assert run.latest is None


def test_a_rendering_is_not_resumed_when_a_variable_of_its_loop_has_changed() -> None:
    template, chat = ChatTemplate(RESUMED["variable"], {}), Growing(2)
    run = LoopRun(Reach(), len(chat.messages))
    rendered(template, run, chat.messages, {"thinking": True}, None)
    assert run.latest is not None
    chat.grow()
    for variables in ({"thinking": False}, {"thinking": 1}, {}):
        with pytest.raises(NotResumableError):
            rendered(template, LoopRun(Reach(), len(chat.messages), run.latest[0]), chat.messages, variables, None)


def test_the_steps_of_what_is_left_out_count() -> None:
    source = "{% for m in messages %}{% for i in range(99999) %}{% endfor %}{{ m.content }}{% endfor %}"
    template, messages = ChatTemplate(source, {}), [{"role": "user", "content": str(n)} for n in range(6)]
    run = LoopRun(Reach(), 4)
    rendered(template, run, messages[:4], {}, None)
    assert run.latest is not None
    with pytest.raises(ChatTemplateError, match="steps"):
        template.render(messages)
    with pytest.raises(NotResumableError, match="steps"):
        rendered(template, LoopRun(Reach(), 6, run.latest[0]), messages, {}, None)


@pytest.mark.parametrize(
    "look",
    [
        lambda message: message["role"],
        lambda message: message.get("role"),
        lambda message: message.role,
        lambda message: "role" in message,
        lambda message: list(message),
        lambda message: dict(message),
        lambda message: json.dumps(message),
        lambda message: str(message),
        lambda message: f"{message}",
        lambda message: bool(message),
        lambda message: message == {},
        lambda message: message | {},
        lambda message: {**message},
        lambda message: sorted([message, message]),
    ],
)
def test_a_message_that_is_left_out_cannot_be_looked_at(look: Callable[[Any], Any]) -> None:
    with pytest.raises(NotResumableError):
        look(Unread())


@pytest.fixture(scope="module")
def pool() -> Iterator[ThreadPoolExecutor]:
    with encode_pool() as made:
        yield made


def plain_ids(tokenizer: Tokenizer, messages: list[Any], variables: Mapping[str, Any], tools: Any) -> bytes:
    assert tokenizer.chat_template is not None
    text = tokenizer.chat_template.render(messages, variables, tools=tools)
    return pack_ids(tokenizer._tokenizer.encode(text, add_special_tokens=False).ids)


def made_tokenizer(pool: ThreadPoolExecutor, source: str) -> Tokenizer:
    """That of the demo model, for which the marks of thoughts are texts like others."""
    files = TokenizerFiles.read(DEMO)
    made = json.loads(files.tokenizer_json)
    made["added_tokens"] = [token for token in made["added_tokens"] if "think" not in token["content"]]
    config = files.config | {"extra_special_tokens": []}
    return Tokenizer(replace(files, tokenizer_json=json.dumps(made), config=config, chat_template=source), pool)


@pytest.mark.parametrize("name", ["demo", "last", "slice", "earlier thinking", "future"])
def test_a_growing_conversation_has_the_ids_of_the_plain_way(name: str, pool: ThreadPoolExecutor) -> None:
    tokenizer = made_tokenizer(pool, (RESUMED | NOT_RESUMED)[name])
    variables: Mapping[str, Any] = {}

    async def talk(chat: Growing) -> None:
        nonlocal variables
        tools: list[Mapping[str, Any]] | None = chat.draw.choice([None, list(TOOLS)])
        for turn in range(8):
            chat.grow()
            if turn == 4:
                chat.edit()
            if turn == 5:
                tools = TOOLS[:1]
            if turn == 6:
                variables = {"mood": "<good>"}
            messages = json.loads(json.dumps(chat.messages))
            ids = await tokenizer.encode_chat(messages, 1_000_000, variables, tools)
            assert ids == plain_ids(tokenizer, chat.messages, variables, tools)

    for seed in range(3):
        asyncio.run(talk(Growing(seed, num_words=900)))


def test_a_turn_renders_and_tokenises_what_is_new(pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer, chat = made_tokenizer(pool, RESUMED["demo"]), Growing(1, num_words=900)
    rendered_messages, tokenised = [], []
    resume, learn = tokenizer._conversations.resume, tokenizer._sections.learn  # type: ignore[union-attr]

    def watched_resume(of: Any) -> Any:
        rendered_messages.append(len(of.messages) - len(of.known.forms))
        return resume(of)

    def watched_learn(owner: Any, sections: Any, known: Any, encode: Any) -> int:
        tokenised.append(sum(len(part) for part, ids in zip(sections, known, strict=True) if ids is None))
        return learn(owner, sections, known, encode)

    monkeypatch.setattr(tokenizer._conversations, "resume", watched_resume)
    monkeypatch.setattr(tokenizer._sections, "learn", watched_learn)
    for _ in range(12):
        chat.grow()
        tokenised.clear()
        asyncio.run(tokenizer.encode_chat(chat.messages, 1_000_000, {}, TOOLS))
        new = sum(len(message["content"]) for message in chat.messages[-2:])
        # Two sections of the turn before may go on.
        assert max(tokenised, default=0) <= 2 * new + 20_000 or not rendered_messages
    assert rendered_messages == [2] * 11


@pytest.mark.parametrize("at", ["new", "old"])
def test_control_tokens_of_a_growing_conversation_are_text(at: str, pool: ThreadPoolExecutor) -> None:
    tokenizer, chat = made_tokenizer(pool, RESUMED["demo"]), Growing(5, num_words=900)
    fresh = made_tokenizer(pool, RESUMED["demo"])
    chat.grow()
    asyncio.run(tokenizer.encode_chat(list(chat.messages), 1_000_000))
    chat.grow()
    special = next(iter(tokenizer.special_tokens))
    place = -1 if at == "new" else 1
    chat.messages[place] = chat.messages[place] | {"content": f"a{special}b" * 3}
    ids = asyncio.run(tokenizer.encode_chat(list(chat.messages), 1_000_000))
    assert ids == asyncio.run(fresh.encode_chat(list(chat.messages), 1_000_000))
    unharmed = json.loads(json.dumps(chat.messages).replace(special, "x"))
    own = fresh.special_tokens[special].to_bytes(4, "little")
    assert count(ids, own) == count(asyncio.run(fresh.encode_chat(unharmed, 1_000_000)), own)


def count(ids: bytes, packed_id: bytes) -> int:
    return [ids[at : at + 4] for at in range(0, len(ids), 4)].count(packed_id)


def test_a_control_token_made_of_pieces_is_refused_in_a_later_turn(pool: ThreadPoolExecutor) -> None:
    special = next(iter(Tokenizer(TokenizerFiles.read(DEMO), pool).special_tokens))
    source = "{% for m in messages %}{{ m.content | replace('#', '') }}" + special + "{% endfor %}"
    tokenizer, chat = made_tokenizer(pool, source), Growing(3, num_words=900)
    chat.grow()
    asyncio.run(tokenizer.encode_chat(list(chat.messages), 1_000_000))
    chat.grow()
    chat.messages.append({"role": "user", "content": f"{special[0]}#{special[1:]}"})
    with pytest.raises(ControlTokenError):
        asyncio.run(tokenizer.encode_chat(list(chat.messages), 1_000_000))


def test_the_same_conversation_once_more_renders_nothing_anew(pool: ThreadPoolExecutor) -> None:
    tokenizer, chat = made_tokenizer(pool, RESUMED["demo"]), Growing(4, num_words=900)
    chat.grow()
    first = asyncio.run(tokenizer.encode_chat(chat.messages, 1_000_000, {}, TOOLS))
    conversations = tokenizer._conversations
    assert conversations is not None
    for _ in range(2):
        opened = conversations.open(chat.messages, {}, TOOLS, "")
        assert len(conversations.resume(opened).text) < 3 * len(chat.messages[-1]["content"]) + 1000
        assert asyncio.run(tokenizer.encode_chat(chat.messages, 1_000_000, {}, TOOLS)) == first


def test_no_tenant_finds_the_conversation_of_another(pool: ThreadPoolExecutor) -> None:
    tokenizer, chat = made_tokenizer(pool, RESUMED["demo"]), Growing(4, num_words=900)
    chat.grow()
    asyncio.run(tokenizer.encode_chat(chat.messages, 1_000_000, tenant="a"))
    chat.grow()
    conversations = tokenizer._conversations
    assert conversations is not None
    assert conversations.open(chat.messages, {}, None, "b").known is None
    assert conversations.open(chat.messages, {}, None, "a").known is not None


def test_messages_that_python_calls_equal_are_not_taken_for_the_same() -> None:
    values = [1, 1.0, True, {"a": 1, "b": 2}, {"b": 2, "a": 1}, "1", None]
    assert len({form_of({"role": "user", "content": value}) for value in values}) == len(values)
