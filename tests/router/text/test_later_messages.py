"""What templates take in the midst of a conversation is found out by rendering."""

from __future__ import annotations

import pytest

from slipstream.router.text.template.chat_template import ChatTemplate
from slipstream.router.text.template.tool_forms import ToolForms
from slipstream.router.text.template.turn import Call, Turn

EACH = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
FIRST_ONLY = "{% for m in messages %}{% if m.role != 'system' or loop.first %}{{ m.content }}{% endif %}{% endfor %}"
LAST_WINS = (
    "{% set ns = namespace(text='') %}{% for m in messages %}{% if m.role == 'system' %}{% set ns.text = m.content %}"
    "{% endif %}{% endfor %}{{ ns.text }}{% for m in messages %}{{ m.content if m.role != 'system' }}{% endfor %}"
)
REFUSES = (
    "{% for m in messages %}{% if m.role == 'system' and not loop.first %}{{ raise_exception('no') }}{% endif %}"
    "{{ m.content }}{% endfor %}"
)
PARTS = "{% for m in messages %}{% for part in m.content %}{{ part.text }}{% endfor %}{% endfor %}"
CALLS = "{{ m.content }}{% for c in m.tool_calls or [] %}{{ c.function | tojson }}{% endfor %}"
# Mistral's: users and assistants alternate, messages with calls and results aside.
ALTERNATING = (
    "{% set ns = namespace(at=0) %}{% for m in messages %}{% if m.role != 'tool' and not m.tool_calls %}"
    "{% if (m.role == 'user') != (ns.at % 2 == 0) %}{{ raise_exception('must alternate') }}{% endif %}"
    f"{{% set ns.at = ns.at + 1 %}}{{% endif %}}{CALLS}{{% endfor %}}"
)


@pytest.mark.parametrize(
    ("source", "shows"), [(EACH, True), (PARTS, True), (FIRST_ONLY, False), (LAST_WINS, False), (REFUSES, False)]
)
def test_a_later_message_of_the_system_is_shown_beside_the_first_or_not(source: str, shows: bool) -> None:
    assert ChatTemplate(source, {}).shows_later_system is shows


def test_words_behind_a_result_come_behind_a_pause_where_a_template_needs_one() -> None:
    turns = [
        Turn("user", "asked"),
        Turn("assistant", None, calls=(Call("call00001", "f", "{}"),)),
        Turn("tool", "found", "f", call_id="call00001"),
        Turn("user", "hurry"),
    ]
    made, _ = ToolForms.of(ChatTemplate(ALTERNATING, {})).conversation(turns, [], "")
    assert [turn.role for turn in made] == ["user", "assistant", "tool", "assistant", "user"]
    free, _ = ToolForms.of(ChatTemplate(f"{{% for m in messages %}}{CALLS}{{% endfor %}}", {})).conversation(
        turns, [], ""
    )
    assert free == turns
