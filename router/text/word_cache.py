"""Tokenises short prompts by looking up their words.

A byte-level BPE tokenizer splits a text into words by a regular expression, and then merges within each word only. So
the ids of a text are those of its words, one after the other, and words repeat. Looking them up takes a fifth of the
time of tokenising, which was the most expensive single thing that the router did for a request.

The expression is written with Unicode classes that Python's `re` does not know. In ASCII text they are plain ranges;
other text, and tokenizers that work in another way, are left to the library.

If the expression begins a new word at every single space, as those of all families do, the text need not even be split
by it: the text between two spaces is looked up as one piece, of one word or a few, which takes a third of the time.
"""

from __future__ import annotations

import re
from typing import Any

import tokenizers

from slipstream.router.protocol.messages import pack_ids

MAX_WORDS = 65_536  # about 15 MiB
MAX_WORD_CHARS = 64
MAX_NEW_WORDS = 64  # learnt from one text, at about 10 us each; a text with more new words is left to the library

# The expression of a byte-level pre-tokenizer that does not name one: GPT-2's.
GPT2_WORDS = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
ASCII_RANGES = {
    "L": "A-Za-z",
    "Lu": "A-Z",
    "Ll": "a-z",
    "N": "0-9",
    "Nd": "0-9",
    **dict.fromkeys(("Lt", "Lm", "Lo", "M", "Mn", "Mc", "Me", "Nl", "No"), ""),
}
UNICODE_CLASS = re.compile(r"\\p\{(\w+)\}")
# A translated expression that splits this text exactly as the library does has been understood.
SAMPLE = (
    "It's 1234567 o'CLOCK,  don't\tyou?\r\n\n   def f(x_1):\n\treturn x  \n'Tis--ok...  http://a.b/c?d=%20 \x7f\x00"
)
# Runs of letters, digits and signs, in all lengths that expressions distinguish; any two are tried with a space
# between.
RUNS = (*("a", "Bc", "dEF", "GHIJ", "1", "23", "456", "7890"), *(".", "--", "!?(", "'s", "x'", "_y", "a1", "1b", "c.d"))
SPACED = " ".join(f"{one} {other}" for one in RUNS for other in RUNS)


class WordCache:
    """Learns words from the texts that it sees. Safe to use from several threads."""

    def __init__(self, tokenizer: tokenizers.Tokenizer, words: re.Pattern[str], added: dict[str, int]) -> None:
        self._tokenizer = tokenizer
        self._words = words
        self.cuts_at_spaces = cuts_at_spaces(words)
        longest_first = sorted(added, key=len, reverse=True)
        self._added = re.compile(f"({'|'.join(map(re.escape, longest_first)) or '(?!)'})")
        self._added_ids = {text: pack_ids([token_id]) for text, token_id in added.items()}
        self._known: dict[str, bytes] = {}
        self._pieces: dict[str, bytes] = {}  # the ids of a piece with a space before it
        self._heads = {"": b""}  # the ids of a piece with nothing before it

    @classmethod
    def for_tokenizer(cls, tokenizer: tokenizers.Tokenizer, spec: dict[str, Any]) -> WordCache | None:
        """A cache for the tokenizer whose tokenizer.json is `spec`; None if it does not work word by word in a way that
        is known here."""
        words = ascii_words(spec)
        added = spec.get("added_tokens", [])
        # With these flags, where a token begins or ends depends on its neighbours.
        if words is None or any(token["single_word"] or token["lstrip"] or token["rstrip"] for token in added):
            return None
        cache = cls(tokenizer, words, {token["content"]: int(token["id"]) for token in added})
        return cache if cache.encode(SAMPLE) == cache._tokenize(SAMPLE) else None

    def encode(self, text: str) -> bytes | None:
        """The packed ids of `text`, exactly as the tokenizer would give them, but without those of a post-processor.

        None if the text has characters beyond ASCII, very long words, or many that were not seen before.
        """
        if not text.isascii():
            return None
        ids: list[bytes] = []
        is_added = False  # text and added tokens take turns
        for part in self._added.split(text):
            if is_added:
                ids.append(self._added_ids[part])
            elif part and not self._append(part, ids):
                return None
            is_added = not is_added
        return b"".join(ids)

    def _append(self, text: str, ids: list[bytes]) -> bool:
        """Append the ids of a text that contains no added tokens. Returns False if it has unknown words."""
        if self.cuts_at_spaces and not ("  " in text or "\n " in text or " \n" in text):  # as indented lines have
            is_known = self._append_pieces(text, ids)
            if is_known is not None:
                return is_known
        words = self._words.findall(text)
        try:
            ids.append(b"".join(map(self._known.__getitem__, words)))
        except KeyError:
            return self._learn(words) and self._append(text, ids)
        return True

    def _append_pieces(self, text: str, ids: list[bytes]) -> bool | None:
        """Looks the text up piece by piece. Returns None if it has to be done word by word, because two pieces are
        separated by more than a single space, or one is very long."""
        pieces = text.split(" ")
        rest = iter(pieces)
        try:
            ids.append(self._heads[next(rest)] + b"".join(map(self._pieces.__getitem__, rest)))
        except KeyError:
            is_known = self._learn_pieces(pieces)
            return self._append_pieces(text, ids) if is_known else is_known
        return True

    def _learn_pieces(self, pieces: list[str]) -> bool | None:
        """Learn the new pieces and their words. Returns False and None like `_append_pieces`."""
        heads = [piece for piece in pieces[:1] if piece not in self._heads]
        new = [piece for piece in dict.fromkeys(pieces[1:]) if piece not in self._pieces]
        for piece in heads + new:
            # White space on either side of a space would form words together with it.
            if piece[-1:].isspace() or len(piece) > MAX_WORD_CHARS:
                return None
        if any(not piece or piece[0].isspace() for piece in new):
            return None
        texts = heads + [f" {piece}" for piece in new]
        if not self._learn([word for text in texts for word in self._words.findall(text)]):
            return False
        if len(self._pieces) + len(new) > MAX_WORDS:
            self._pieces = {}
            return None  # the pieces of this text that were known have gone as well, and need not fit beside the new
        if len(self._heads) + len(heads) > MAX_WORDS:
            self._heads = {"": b""}
        try:
            self._heads |= {piece: self._look_up(piece) for piece in heads}
            self._pieces |= {piece: self._look_up(f" {piece}") for piece in new}
        except KeyError:  # another thread has just begun to learn anew
            return None
        return True

    def _look_up(self, text: str) -> bytes:
        return b"".join(map(self._known.__getitem__, self._words.findall(text)))

    def _learn(self, words: list[str]) -> bool:
        """Tokenise the new words. Returns False if some are still unknown."""
        new = [word for word in dict.fromkeys(words) if word not in self._known]
        if any(len(word) > MAX_WORD_CHARS for word in new):
            return False
        if len(self._known) + len(new) > MAX_WORDS:
            self._known = {}
            return False
        self._known |= {word: self._tokenize(word) for word in new[:MAX_NEW_WORDS]}
        return len(new) <= MAX_NEW_WORDS

    def _tokenize(self, text: str) -> bytes:
        return pack_ids(self._tokenizer.encode(text, add_special_tokens=False).ids)


def ascii_words(spec: dict[str, Any]) -> re.Pattern[str] | None:
    """The expression by which the tokenizer of tokenizer.json splits ASCII text into words; None if there is none."""
    pre_tokenizer, normalizer, model = spec.get("pre_tokenizer"), spec.get("normalizer"), spec.get("model") or {}
    if model.get("type") != "BPE" or model.get("dropout") or (normalizer or {"type": "NFC"})["type"] != "NFC":
        return None  # NFC leaves ASCII as it is
    match pre_tokenizer:
        case {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}:
            return in_ascii(GPT2_WORDS)
        case {
            "type": "Sequence",
            "pretokenizers": [
                {"type": "Split", "pattern": {"Regex": str(expression)}, "behavior": "Isolated", "invert": False},
                {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False},
            ],
        }:
            return in_ascii(expression)
    return None


def cuts_at_spaces(words: re.Pattern[str]) -> bool:
    """Whether a single space always begins a word, with any text on either side of it."""
    head, *pieces = SPACED.split(" ")
    return words.findall(SPACED) == words.findall(head) + [w for piece in pieces for w in words.findall(f" {piece}")]


def in_ascii(expression: str) -> re.Pattern[str] | None:
    """The expression in Python's syntax, for ASCII text; None if it uses something that is not known here."""
    parts: list[str] = []
    in_set = False
    position = 0
    while position < len(expression):
        unicode_class = UNICODE_CLASS.match(expression, position)
        if unicode_class is not None:
            ranges = ASCII_RANGES.get(unicode_class[1])
            if ranges is None or not (ranges or in_set):
                return None
            part = ranges if in_set else f"[{ranges}]"
            position = unicode_class.end()
        else:
            part = expression[position : position + (2 if expression[position] == "\\" else 1)]
            if part == "[" and in_set:
                return None  # a set within a set
            in_set = (in_set or part == "[") and part != "]"
            position += len(part)
        parts.append(part)
    pattern = "".join(parts)
    if "[]" in pattern or "[^]" in pattern:
        return None
    try:
        compiled = re.compile(pattern, re.ASCII)
    except re.error:
        return None
    return compiled if compiled.groups == 0 else None
