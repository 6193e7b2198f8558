"""Keeps control tokens that a client typed from controlling anything.

A chat template marks turns with control tokens such as `<|end|><|system|>`. A tokenizer that sees only the rendered
prompt cannot tell the template's control tokens from those that a user typed. So before rendering, control tokens in
messages are replaced by a disguise that the template carries along; afterwards the disguise is tokenised as the plain
text that it stood for. (transformers 5 has the same idea as `apply_chat_template(sanitize_control_tokens=True)`, off by
default.)
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

import tokenizers

from slipstream.router.encoding import encode_unlocked
from slipstream.router.messages import pack_ids, unpack_ids

# Unicode noncharacters: never part of real text, and left alone by templates.
DISGUISES = [chr(code) for code in range(0xFDD0, 0xFDF0)]


class ControlTokenError(ValueError):
    """The messages cannot be made harmless and are refused."""


@dataclass(frozen=True, slots=True)
class DisguisedMessages:
    """Messages in which control token number i of `ControlTokens` was replaced by `mark` + i + `mark`."""

    messages: list[dict[str, Any]]
    mark: str


class ControlTokens:
    """All special tokens of a tokenizer, and the added tokens that its chat template writes."""

    def __init__(self, spec: dict[str, Any], chat_template: str) -> None:
        added = spec.get("added_tokens", [])
        controls = [
            token
            for token in added
            if token["special"] or (token["content"] in chat_template and not token["content"].isspace())
        ]
        self._texts: list[str] = sorted((token["content"] for token in controls), key=len, reverse=True)
        self._ids = {token["content"]: int(token["id"]) for token in controls}
        self._numbers = {text: number for number, text in enumerate(self._texts)}
        self._strips = {token["content"]: (token["lstrip"], token["rstrip"]) for token in controls}
        self._pattern = re.compile("|".join(map(re.escape, self._texts)) or r"(?!)")
        plain = spec | {"added_tokens": [token | {"special": True} for token in added]}
        self._plain = tokenizers.Tokenizer.from_str(json.dumps(plain))
        self._plain.encode_special_tokens = True  # in the library's words: encode them as text

    def disguise(self, messages: list[dict[str, Any]]) -> DisguisedMessages | None:
        """The messages with their control tokens disguised; None if they contain none. Raises ControlTokenError."""
        texts = [value for message in messages for value in message.values() if isinstance(value, str)]
        if not any(map(self._pattern.search, texts)):
            return None
        mark = next((mark for mark in DISGUISES if not any(mark in text for text in texts)), None)
        if mark is None:
            raise ControlTokenError("the messages contain every Unicode noncharacter from U+FDD0 to U+FDEF")

        def hide(value: Any) -> Any:
            if not isinstance(value, str):
                return value
            return self._pattern.sub(lambda match: f"{mark}{self._numbers[match[0]]}{mark}", value)

        hidden = [{key: hide(value) for key, value in message.items()} for message in messages]
        return DisguisedMessages(hidden, mark)

    def encode(self, rendered: str, disguised: DisguisedMessages) -> bytes:
        """The packed token ids of a prompt that was rendered from `disguised`. The text between control tokens is
        tokenised piece by piece, exactly as the tokenizer would do. Raises ControlTokenError."""
        ids: list[bytes] = []
        control_ids = set(self._ids.values())
        disguise = re.compile(f"{disguised.mark}(\\d+){disguised.mark}")

        def encode_text(text: str) -> None:
            if text:
                text = disguise.sub(lambda match: self._texts[int(match[1])], text)
                text_ids = encode_unlocked(self._plain, text, add_special_tokens=False)
                if not control_ids.isdisjoint(unpack_ids(text_ids)):
                    # The model's vocabulary spells them out once more.
                    raise ControlTokenError("the messages contain control tokens")
                ids.append(text_ids)

        start, strip_next = 0, False
        for match in self._pattern.finditer(rendered):
            text = rendered[start : match.start()]
            strips_before, strips_after = self._strips[match[0]]
            text = text.lstrip() if strip_next else text
            encode_text(text.rstrip() if strips_before else text)
            ids.append(pack_ids([self._ids[match[0]]]))
            start, strip_next = match.end(), strips_after
        encode_text(rendered[start:].lstrip() if strip_next else rendered[start:])
        return b"".join(ids)
