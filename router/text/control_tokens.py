"""Keeps control tokens that a client typed from controlling anything.

A chat template marks turns with control tokens such as `<|end|><|system|>`. A tokenizer that sees only the rendered
prompt cannot distinguish the template's control tokens from those that a user typed. So before rendering, control
tokens in messages are replaced by a disguise that the template carries along. (transformers 5 has the same idea as
`apply_chat_template(sanitize_control_tokens=True)`, off by default.)

Afterwards the whole prompt is tokenised at once, so that every other text keeps its tokens: a tokenizer treats the
beginning of a text in its own way (a leading space of sentencepiece), and the neighbours of an added token, too. For
this there is a second tokenizer, which differs only in its normalizer: that first removes a separator. The disguises
become the text that they stand for with the separator behind each character. Added tokens are looked for before texts
are normalised, and no token contains the separator, so what was typed is found to be text.
"""

from __future__ import annotations

import json
import re
import secrets
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

import tokenizers

from slipstream.router.protocol.messages import pack_ids
from slipstream.router.text.composed_tokens import ComposedTokens

# Unicode noncharacters: never part of real text, and left alone by templates.
DISGUISES = [chr(code) for code in range(0xFDD0, 0xFDEF)]
SEPARATOR = "\ufdef"
CALLS = "tool_calls"  # the field of a message
TEXT_PART = {"type", "text"}  # the fields of a part of a content
UNKNOWN_PENALTY = 10.0  # by which the library scores an unknown character below all pieces

Message = dict[str, Any]


class ControlTokenError(ValueError):
    """The messages cannot be made harmless and are refused."""


@dataclass(frozen=True, slots=True)
class DisguisedMessages:
    """Messages in which `texts[i]` was replaced by `marks[0]` + i + `marks[1]`. Each is a control token, or the part of
    one that runs from one part of a content into the next."""

    messages: list[Message]
    marks: tuple[str, str]
    texts: list[str]


class ControlTokens:
    """All special tokens of a tokenizer, and the added tokens that its chat template writes. `spec` is what `tokenizer`
    was made from."""

    def __init__(self, spec: dict[str, Any], chat_template: str, tokenizer: tokenizers.Tokenizer) -> None:
        added = spec.get("added_tokens", [])
        controls = [
            token
            for token in added
            if token["special"] or (token["content"] in chat_template and not token["content"].isspace())
        ]
        texts = [token["content"] for token in controls]
        self._ids = frozenset(int(token["id"]) for token in controls)
        self.pattern = self._pattern = any_of(texts)
        self.longest = max(map(len, texts), default=0)
        self._special = any_of(token["content"] for token in controls if token["special"])
        self.composed = ComposedTokens(texts, chat_template)
        # Then texts without these characters have no control token, which is found out faster.
        self._have_edges = all(not self.composed.edges.isdisjoint(text) for text in texts)
        # The user cannot know it, so that no text of theirs is removed.
        self._separator = f"{SEPARATOR}{secrets.token_hex(8)}{SEPARATOR}"
        variants = self._variants = Variants.of(spec, [token["content"] for token in controls if token["normalized"]])
        are_known = variants is None or variants.are_known
        # Then a prompt has a control token wherever its text has one; otherwise the tokenizer decides.
        self._are_all_found = are_known and not any(token["single_word"] for token in controls)
        if are_known:
            plain = [token | {"normalized": False} if token["content"] in texts else token for token in added]
        else:
            plain = added
        normalizers = [{"type": "Replace", "pattern": {"String": self._separator}, "content": ""}]
        if spec.get("normalizer") is not None:
            normalizers.append(spec["normalizer"])
        separating = {
            "added_tokens": plain,
            "normalizer": {"type": "Sequence", "normalizers": normalizers},
            "model": without_pieces(spec["model"], texts),
        }
        self._tokenizer = variant_of(tokenizer, spec, separating)
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()

    @property
    def is_exact(self) -> bool:
        """Whether control tokens are looked for in texts as they are, in no other spelling."""
        return self._variants is None

    def has_pieces(self, messages: list[Message]) -> bool:
        """Whether a template could make a control token out of pieces in the messages. They have none without these,
        but for other spellings."""
        return any(map(self.composed.are_in, all_texts(messages))) or self.composed.has_telling_name(messages)

    def disguise(self, messages: list[Message], has_pieces: bool = True) -> DisguisedMessages | None:
        """The messages with their control tokens disguised; None if they contain none. Raises ControlTokenError.

        An assistant's message keeps tokens that are not special, such as `</think>`: the model wrote them, and
        templates look for them. Not so its calls: what is in them are values, around which the template writes such
        tokens."""
        if not has_pieces and self._have_edges and self._variants is None:
            return None
        texts = all_texts(messages)
        has_variant = self._has_variant(texts)
        if not has_variant and not any(map(self._pattern.search, texts)):
            return None
        marks = list(islice((mark for mark in DISGUISES if not has_mark("\0".join(texts), mark)), 2))
        if len(marks) < 2:
            raise ControlTokenError("the messages contain every Unicode noncharacter from U+FDD0 to U+FDEE")
        begin_mark, end_mark = marks
        hidden: list[str] = []

        def hide(value: Any, pattern: re.Pattern[str]) -> Any:
            if isinstance(value, str):
                return hide_parts([value], pattern)[0]
            if is_content(value):
                pieces = iter(hide_parts([part["text"] for part in value], pattern))
                return [part | {"text": next(pieces)} for part in value]
            if isinstance(value, list):
                return [hide(item, pattern) for item in value]
            if isinstance(value, dict):
                return {hide(key, pattern): hide(item, pattern) for key, item in value.items()}
            return value

        def hide_all(message: Message) -> Message:
            spoken = self._special if message.get("role") == "assistant" else self._pattern
            return {key: hide(item, self._pattern if key == CALLS else spoken) for key, item in message.items()}

        def hide_parts(parts: list[str], pattern: re.Pattern[str]) -> list[str]:
            """The parts, which a template may join."""
            made, begin = [], 0
            spans = [match.span() for match in pattern.finditer("".join(parts))]
            for part in parts:
                pieces, at = [], 0
                for start, end in spans:
                    first, last = max(start - begin, at), min(end - begin, len(part))
                    if first < last:
                        pieces.append(f"{part[at:first]}{begin_mark}{len(hidden)}{end_mark}")
                        hidden.append(part[first:last])
                        at = last
                made.append("".join(pieces) + part[at:])
                begin += len(part)
            return made

        disguised = list(map(hide_all, messages))
        if not hidden and not has_variant:
            return None
        return DisguisedMessages(disguised, (begin_mark, end_mark), hidden)

    def check_composed(self, rendered: str, broken: str, disguised: DisguisedMessages | None) -> None:
        """Raises ControlTokenError if a prompt has more control tokens than with the pieces of such broken up."""
        variants = self._variants
        if variants is not None and variants.are_known and disguised is not None:
            variants = None  # `encode` finds no other spellings
        if Counter(self._found_in(rendered, variants)) - Counter(self._found_in(broken, variants)):
            raise ControlTokenError("the chat template would make control tokens of pieces in the messages")

    def _found_in(self, text: str, variants: Variants | None) -> list[str]:
        """The control tokens in a prompt, and those in its normalised text if some are looked for there."""
        in_normalised = [] if variants is None else variants.found_in(text)
        return [match[0] for match in self._pattern.finditer(text)] + in_normalised

    def encode(self, rendered: str, disguised: DisguisedMessages) -> bytes:
        """The packed token ids of a prompt that was rendered from `disguised`. Raises ControlTokenError."""
        pieces: list[str] = []
        spans: list[tuple[int, int]] = []  # of what was typed, in `text`
        at = length = 0
        begin_mark, end_mark = disguised.marks
        disguises = re.compile(f"{begin_mark}([0-9]{{1,9}}){end_mark}")
        beside = disguises.sub("\0", rendered)
        indices = map(int, disguises.findall(rendered))
        if any(has_mark(beside, mark) for mark in disguised.marks) or max(indices, default=-1) >= len(disguised.texts):
            raise ControlTokenError("the chat template changes texts that have control tokens")
        for match in disguises.finditer(rendered):
            typed = "".join([character + self._separator for character in disguised.texts[int(match[1])]])
            before = rendered[at : match.start()]
            pieces += before, typed
            length += len(before) + len(typed)
            spans.append((length - len(typed), length))
            at = match.end()
        text = "".join((*pieces, rendered[at:]))
        (encoding,) = self._tokenizer.encode_batch([text], add_special_tokens=False)
        token_ids = encoding.ids
        num_controls = sum(map(self._ids.__contains__, token_ids))
        if not self._are_all_found or num_controls > sum(1 for _ in self._pattern.finditer(text)):
            # The model's vocabulary spells them out once more, or they are found in the normalised text.
            self._check(token_ids, encoding.offsets, spans)
        return pack_ids(token_ids)

    def _check(self, token_ids: list[int], offsets: list[tuple[int, int]], spans: list[tuple[int, int]]) -> None:
        """Raises ControlTokenError if something that was typed became a control token."""
        for token_id, (start, end) in zip(token_ids, offsets, strict=True):
            if token_id in self._ids:
                behind = bisect_right(spans, (end, 0))  # the spans before this one begin before the token ends
                if behind and spans[behind - 1][1] > start:
                    raise ControlTokenError("the messages contain control tokens")

    def _has_variant(self, texts: list[str]) -> bool:
        """Whether a text contains a control token in another spelling. Raises ControlTokenError if that cannot be made
        harmless."""
        if self._variants is None or not any(map(self._variants.are_in, texts)):
            return False
        if not self._variants.are_known:
            raise ControlTokenError("the messages contain text that the tokenizer takes for a control token")
        return True


def has_mark(text: str, mark: str) -> bool:
    """Whether a text has a mark, also as templates escape it: in JSON, URLs, HTML, and bytes."""
    utf8, lowered = [f"{byte:02x}" for byte in mark.encode()], text.lower()
    forms = (mark, f"u{ord(mark):04x}", "%".join(utf8), r"\x".join(utf8), f"#{ord(mark)};")
    return any(form in lowered for form in forms)


class Variants:
    """Other spellings of control tokens, which the tokenizer looks for in normalised text: `<|END|>` where the
    normalizer writes everything in lower case. They `are_known` if it leaves the tokens themselves alone and treats
    every part of a text alike: then the template's tokens are found in the text as it is."""

    def __init__(self, spec: dict[str, Any], texts: list[str]) -> None:
        shell = {"version": "1.0", "model": {"type": "BPE", "vocab": {}, "merges": []}, "normalizer": spec}
        normalizer = tokenizers.Tokenizer.from_str(json.dumps(shell)).normalizer
        assert normalizer is not None
        self._normalizer = normalizer
        self._exact = any_of(texts)
        folded = [normalizer.normalize_str(text) for text in texts]
        self._folded = any_of(filter(None, folded))
        self.are_known = folded == texts and is_local(spec)

    @classmethod
    def of(cls, spec: dict[str, Any], texts: list[str]) -> Variants | None:
        """None if there can be none: `texts` are the tokens that are looked for in normalised text."""
        if spec.get("normalizer") is None or not texts:
            return None
        return cls(spec["normalizer"], texts)

    def are_in(self, text: str) -> bool:
        """Whether the text has one, beside control tokens in their own spelling."""
        return any(
            self._folded.search(self._normalizer.normalize_str(part)) is not None for part in self._exact.split(text)
        )

    def found_in(self, text: str) -> list[str]:
        """The control tokens, in any spelling, that the tokenizer finds in a normalised text."""
        return [match[0] for match in self._folded.finditer(self._normalizer.normalize_str(text))]


def all_texts(messages: list[Message]) -> list[str]:
    """All texts in messages; see `texts_of`."""
    values = [value for message in messages for value in message.values()]
    texts = [value for value in values if isinstance(value, str)]
    if len(texts) < len(values):
        texts += texts_of([value for value in values if not isinstance(value, str)])
    return texts


def without_pieces(model: dict[str, Any], texts: list[str]) -> dict[str, Any]:
    """A model of tokenizer.json that does not make one token of any of the texts, though it may have one: conversions
    of sentencepiece have control tokens among their pieces."""
    vocab = model.get("vocab", [])
    if model.get("type") == "Unigram":  # it joins whatever is likely: so spelling a text out is made likelier
        lowest = min([score for _, score in vocab], default=0.0) - UNKNOWN_PENALTY
        scores = [[piece, lowest * (len(piece) + 1) if piece in texts else score] for piece, score in vocab]
        return model | {"vocab": scores}
    if model.get("type") == "BPE" and any(text in vocab for text in texts):
        pairs = [(merge, merge.split(" ") if isinstance(merge, str) else merge) for merge in model["merges"]]
        return model | {"merges": [merge for merge, pair in pairs if "".join(pair) not in texts]}
    return model


def variant_of(tokenizer: tokenizers.Tokenizer, spec: dict[str, Any], changes: dict[str, Any]) -> tokenizers.Tokenizer:
    """The tokenizer of tokenizer.json with other `added_tokens`, `normalizer` and `model`. It shares the vocabulary of
    `tokenizer` if the model is the same: that is nearly all of its memory, and of the time that reading it takes."""
    if changes["model"] is spec["model"]:
        shell = {"version": "1.0", "model": {"type": "BPE", "vocab": {}, "merges": []}}
        variant = tokenizers.Tokenizer(tokenizer.model)
        variant.normalizer = tokenizers.Tokenizer.from_str(
            json.dumps(shell | {"normalizer": changes["normalizer"]})
        ).normalizer
        for part in ("pre_tokenizer", "post_processor", "decoder"):
            value = getattr(tokenizer, part)
            if value is not None:
                setattr(variant, part, value)
        for token in changes["added_tokens"]:
            fields = {name: value for name, value in token.items() if name not in ("id", "special")}
            add = variant.add_special_tokens if token["special"] else variant.add_tokens
            add([tokenizers.AddedToken(**fields)])
        if all(variant.token_to_id(token["content"]) == token["id"] for token in changes["added_tokens"]):
            return variant
    return tokenizers.Tokenizer.from_str(json.dumps(spec | changes))


def is_local(normalizer: dict[str, Any]) -> bool:
    """Whether a normalizer of tokenizer.json treats each part of a text as if it stood alone."""
    if normalizer["type"] == "Sequence":
        return all(map(is_local, normalizer["normalizers"]))
    if normalizer["type"] == "Replace":
        return len(normalizer["pattern"].get("String", "")) == 1
    return normalizer["type"] in ("NFC", "NFD", "NFKC", "NFKD", "Lowercase")


def any_of(texts: Iterable[str]) -> re.Pattern[str]:
    """Finds any of the texts, the longest first as tokenizers do."""
    return re.compile("|".join(map(re.escape, sorted(texts, key=len, reverse=True))) or r"(?!)")


def texts_of(value: Any) -> Iterator[str]:
    """All texts in messages, at any depth, the keys of objects as well; the parts of a content as one, because a
    template may join them."""
    if isinstance(value, str):
        yield value
    elif is_content(value):
        yield "".join([part["text"] for part in value])
    elif isinstance(value, list):
        for item in value:
            yield from texts_of(item)
    elif isinstance(value, dict):
        for key, item in value.items():
            yield key
            yield from texts_of(item)


def is_content(value: Any) -> bool:
    """Whether it is the content of a message as a list of text parts."""
    return isinstance(value, list) and bool(value) and all(map(is_text_part, value))


def is_text_part(value: Any) -> bool:
    if not isinstance(value, dict) or value.keys() != TEXT_PART:
        return False
    return value["type"] == "text" and isinstance(value["text"], str)
