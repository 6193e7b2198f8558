"""A chat template gets the content of messages in the form that it takes, so that no text is dropped."""

from __future__ import annotations

import shutil
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from slipstream.router.api.generation.prompts import plain_message
from slipstream.router.api.openai.schema.messages import ChatMessage, TextPart
from slipstream.router.config.router_config import ContentFormat
from slipstream.router.text.template.chat_template import ChatTemplate
from slipstream.router.text.template.content_form import ContentForms
from slipstream.router.text.tokenizer import Tokenizer

DEMO = Path(__file__).parents[3] / "models" / "slipstream-demo"
LOOP = "{% for m in messages %}<{{ m.role }}>{% for p in m['content'] %}{% if p['type'] == 'text' %}{{ p.text }}"
LOOP += "{% endif %}{% endfor %}{% endfor %}"
TEXT = "{% for m in messages %}<{{ m.role }}>{{ m.content | trim }}{% endfor %}"
PARTS_ONLY = {
    "a loop over parts": LOOP,
    "a loop in a macro": "{% macro show(c) %}{% for p in c %}{{ p.text | upper }}{% endfor %}{% endmacro %}"
    "{% for m in messages %}<{{ m.role }}>{{ show(m.content) }}{% endfor %}",
    "a loop over a variable": "{% for m in messages %}{% set c = m.content %}<{{ m.role }}>"
    "{% for p in c | selectattr('type', 'equalto', 'text') %}{{ p.text }}{% endfor %}{% endfor %}",
    "a loop over other messages": "{% set ms = messages %}{% if ms[0].role == 'system' %}<system>"
    "{% for p in ms[0].content %}{{ p.text }}{% endfor %}{% set ms = ms[1:] %}{% endif %}"
    "{% for m in ms %}<{{ m.role }}>{% for p in m.content %}{{ p.text }}{% endfor %}{% endfor %}",
}
TEXT_ONLY = {
    "a filter": TEXT,
    "an addition": "{% for m in messages %}{{ '<' + m.role + '>' + m.content }}{% endfor %}",
    "JSON": "{% for m in messages %}<{{ m.role }}>{{ m.content | tojson }}{% endfor %}",
    "letters": "{% for m in messages %}<{{ m.role }}>{% for letter in m.content %}{{ letter }}{% endfor %}{% endfor %}",
    "JSON of a part": TEXT + """ Answer as {"type": "text"}, and 'type': 'text'""",
}
BOTH = "{% for m in messages %}<{{ m.role }}>{% if m.content is string %}{{ m.content }}{% else %}"
BOTH += "{% for p in m.content %}[{{ p.text }}]{% endfor %}{% endif %}{% endfor %}"
ROLES = ("system", "user", "assistant", "tool")


@cache
def reference() -> Any:
    return AutoTokenizer.from_pretrained(DEMO)


def rendered(source: str, contents: list[str | list[str]], content_format: ContentFormat = "auto") -> str:
    template = ChatTemplate(source, {})
    forms = ContentForms.of(template, content_format)
    messages = [
        ChatMessage(
            role=role,
            tool_call_id="call" if role == "tool" else None,
            content=content if isinstance(content, str) else [TextPart(type="text", text=text) for text in content],
        )
        for role, content in zip(ROLES, contents, strict=False)
    ]
    return template.render([plain_message(message, True, forms=forms) for message in messages])


def theirs(source: str, contents: list[str | list[str]], joins: bool) -> str:
    """With parts if the template wants them, else with texts."""
    messages: list[dict[str, Any]] = []
    for role, content in zip(ROLES, contents, strict=False):
        texts = [content] if isinstance(content, str) else content
        parts = [{"type": "text", "text": text} for text in texts]
        messages.append({"role": role, "content": "\n".join(texts) if joins else parts})
    made: str = reference().apply_chat_template(messages, chat_template=source, tokenize=False)
    return made


CONTENTS: list[str | list[str]] = ["Be brief.", ["Hi ", "there"], "Yes?", ["42"]]


@pytest.mark.parametrize("kind", PARTS_ONLY)
def test_a_template_that_knows_only_parts_gets_parts(kind: str) -> None:
    source = PARTS_ONLY[kind]
    contents = [["Be ", "brief."], *CONTENTS[1:]]
    assert rendered(source, contents) == theirs(source, contents, joins=False)
    assert rendered(source, ["one two"]) == theirs(source, ["one two"], joins=False)
    assert rendered(source, CONTENTS, "openai") == theirs(source, CONTENTS, joins=False)


@pytest.mark.parametrize("kind", TEXT_ONLY)
def test_a_template_that_knows_only_text_gets_parts_joined_by_line_breaks(kind: str) -> None:
    source = TEXT_ONLY[kind]
    assert rendered(source, CONTENTS) == theirs(source, CONTENTS, joins=True)
    assert rendered(source, CONTENTS, "string") == theirs(source, CONTENTS, joins=True)


def test_a_template_that_knows_both_gets_what_was_sent() -> None:
    assert rendered(BOTH, CONTENTS) == "<system>Be brief.<user>[Hi ][there]<assistant>Yes?<tool>[42]"
    assert rendered(BOTH, CONTENTS, "string") == "<system>Be brief.<user>Hi \nthere<assistant>Yes?<tool>42"
    assert rendered(BOTH, CONTENTS, "openai") == "<system>[Be brief.]<user>[Hi ][there]<assistant>[Yes?]<tool>[42]"


@pytest.mark.parametrize("content_format", ["auto", "string", "openai"])
def test_the_configuration_of_the_model_overrules_what_was_found(tmp_path: Path, content_format: ContentFormat) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(DEMO / name, tmp_path)
    (tmp_path / "chat_template.jinja").write_text(BOTH)
    tokenizer = Tokenizer.from_directory(tmp_path, ThreadPoolExecutor(1), content_format)
    expected = {"auto": (True, True), "string": (True, False), "openai": (False, True)}
    for role in ROLES:
        assert tokenizer.content_forms.of_role(role)[:2] == expected[content_format]


def test_each_role_has_its_own_form() -> None:
    source = "{% set ms = messages %}{% if ms[0].role == 'system' %}{{ ms[0].content | trim }}{% set ms = ms[1:] %}"
    source += "{% endif %}{% for m in ms %}<{{ m.role }}>{% for p in m.content %}{{ p.text }}{% endfor %}{% endfor %}"
    assert rendered(source, [["Be", "brief."], "Hi", ["Yes", "?"]]) == "Be\nbrief.<user>Hi<assistant>Yes?"


def test_a_template_that_looks_at_one_part_only_gets_one() -> None:
    assert rendered("{{ messages[0].content[0].text }}", [["Hi", "there"]]) == "Hi\nthere"


def test_a_role_that_a_template_refuses_is_refused_with_its_own_words() -> None:
    source = "{% if messages[0].role == 'system' %}{{ raise_exception('No system role.') }}{% endif %}" + LOOP
    with pytest.raises(ValueError, match=r"^No system role\.$"):
        rendered(source, ["Be brief.", "Hi"])
    template = ChatTemplate(source, {})
    user = plain_message(ChatMessage(role="user", content="Hi"), True, forms=ContentForms.of(template))
    assert template.render([user]) == "<user>Hi"


def test_an_assistant_that_said_nothing_has_no_parts() -> None:
    forms = ContentForms.of(ChatTemplate(LOOP, {}))
    assert plain_message(ChatMessage(role="assistant", content=None), True, forms=forms)["content"] == []
    assert plain_message(ChatMessage(role="assistant", content=None), True)["content"] == ""
