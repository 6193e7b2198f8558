"""The form in which a chat template takes the content of messages: as text, or as a list of parts.

vLLM looks whether the template's syntax tree has a loop over a message's content. Here the template is tried out, role
by role, which also understands macros, and templates that treat the roles differently: a text that does not come out
was given in the wrong form. A template that takes both is given what the client sent, as transformers does.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from slipstream.router.config.router_config import ContentFormat
from slipstream.router.text.template.chat_template import ChatTemplate, ChatTemplateError, Message

WORDS = ("slipstreamone", "slipstreamtwo")  # letters only: templates may trim, change the case, escape
FILLER = WORDS[0]
GIVEN = re.compile("|".join(WORDS), re.IGNORECASE)
UNNAMED = [{"id": FILLER}]
SHOWN_PART = re.compile(r"""["']type["']\s*:\s*["']text["']""")  # a part that was printed, not understood


class ContentForm(NamedTuple):
    """`takes_text`: content may be a string. `takes_parts`: it may be a list of text parts, with `only_one` of one."""

    takes_text: bool
    takes_parts: bool
    only_one: bool = False

    def of(self, content: str | Sequence[str] | None) -> str | list[dict[str, str]]:
        """A message's content as the template takes it: the text, or the texts of parts. Parts for a template that
        takes text are joined by line breaks, as vLLM does; nothing is an empty text or no parts."""
        if content is None:
            return "" if self.takes_text else []
        if not isinstance(content, str):
            if self.takes_parts and not self.only_one:
                return [text_part(text) for text in content]
            content = "\n".join(content)
        return content if self.takes_text else [text_part(content)]


TEXT = ContentForm(True, False)
PARTS = ContentForm(False, True)


class ContentForms:
    """The form for each role. `rendered` is all that the template itself wrote when it was tried out."""

    def __init__(self, forms: Mapping[str, ContentForm], usual: ContentForm, rendered: str = "") -> None:
        self._forms = forms
        self._usual = usual
        self.rendered = rendered

    @classmethod
    def of(
        cls, template: ChatTemplate, content_format: ContentFormat = "auto", calling: list[Message] | None = None
    ) -> ContentForms:
        """What a template takes, or what a configuration says that it takes. `calling` is a conversation that a result
        of a tool may follow, where the template knows any."""
        trial = TrialRendering(template)
        usual = trial.form_of([], "user", []) or TEXT
        user: list[Message] = [{"role": "user", "content": usual.of(FILLER)}]
        assistant = trial.form_of(user, "assistant", user) or usual
        asked = [*user, {"role": "assistant", "content": assistant.of(FILLER)}]
        forms = {
            "assistant": assistant,
            "system": trial.form_of([], "system", user) or usual,
            "developer": trial.form_of([], "developer", user) or usual,
            "tool": (calling and trial.form_of(calling, "tool", []))
            or trial.form_of(asked, "tool", user)
            or trial.form_of(asked, "tool", [])
            or usual,
        }
        rendered = "\0".join(trial.rendered)
        if content_format == "auto":
            return cls(forms, usual, rendered)
        return cls({}, PARTS if content_format == "openai" else TEXT, rendered)

    def of_role(self, role: str) -> ContentForm:
        return self._forms.get(role, self._usual)


ALL_TEXT = ContentForms({}, TEXT)


class TrialRendering:
    """Renders conversations, and keeps what the template itself wrote in `rendered`."""

    def __init__(self, template: ChatTemplate) -> None:
        self._template = template
        self.rendered: list[str] = []

    def form_of(self, before: list[Message], role: str, after: list[Message]) -> ContentForm | None:
        """The form for a message of this role between others; None if its text comes out in neither."""

        def render(content: Any) -> str:
            message = {"role": role, "content": content}
            if role == "tool":
                message["tool_call_id"] = before[-1].get("tool_calls", UNNAMED)[0]["id"]
            try:
                text = self._template.render([*before, message, *after])
            except ChatTemplateError:
                return ""
            self.rendered.append(GIVEN.sub("\0", text))
            return text

        usual = len(SHOWN_PART.findall(render("")))

        def shows(content: Any) -> bool:
            text = render(content)
            return all(word in text.lower() for word in WORDS) and len(SHOWN_PART.findall(text)) <= usual

        takes_text = shows(" ".join(WORDS))
        if shows([text_part(word) for word in WORDS]):
            return ContentForm(takes_text, True)
        if takes_text:
            return TEXT
        return ContentForm(False, True, only_one=True) if shows([text_part(" ".join(WORDS))]) else None


def text_part(text: str) -> dict[str, str]:
    return {"type": "text", "text": text}
