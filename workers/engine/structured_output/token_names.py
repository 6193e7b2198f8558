"""The tokenizer.json that llguidance gets: its special tokens have names that no text contains.

Where a grammar forces a text, llguidance allows only the tokens that the tokenizer makes of it. A tokenizer recognises
its added tokens in any text: of the forced text `<|end|>` it would make the special token, which is no text to
llguidance, so that nothing could follow. With other names for these tokens a text is always made of ordinary ones. Ids
stay what they are.

For the same reason, what a tokenizer changes in a text before it makes tokens of it (Unicode's normal forms, letter
case, a space in front) is left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

NONCHARACTER = "\ufdd0"  # Unicode: never for interchange; no text has it
# What llguidance's Lark is made of (parser/src/lark/lexer.rs): comments, strings, expressions, names of tokens.
LARK_TOKENS = re.compile(r'(?:#|//)[^\n]*|"(?:\\.|[^"\\\n])*"|/(?:\\.|[^/\\])+/|(<[^<>\s]+>)')
# The tokens that end an output where a model's files name none (toktrie_hf_tokenizers/src/lib.rs).
END_TEXTS = ("</s>", "<|endoftext|>", "<|end_of_text|>", "<｜end▁of▁sentence｜>", "<eos>")
KEEPS_TEXT = {"lstrip": False, "rstrip": False, "single_word": False}


class TokenNames:
    """Of the added tokens of one tokenizer.json that llguidance takes for special ones: those that are, and all of the
    form `<...>`."""

    def __init__(self, added_tokens: Iterable[Mapping[str, Any]]) -> None:
        self._names: dict[str, str] = {}
        self._ids: dict[str, int] = {}
        self._plain: dict[bytes, bytes] = {}
        for token in added_tokens:
            text, token_id = token["content"], token["id"]
            has_form = text.startswith("<") and text.endswith(">")
            if text in self._ids or not (has_form or token.get("special")):
                continue
            name = f"<{NONCHARACTER}{token_id}>"
            self._names[text], self._ids[text] = name, token_id
            if not token.get("special"):
                self._plain[text.encode()] = name.encode()

    def renamed(self, spec: Mapping[str, Any]) -> dict[str, Any]:
        """`spec` is the whole tokenizer.json. The tokens of a text are the text, with nothing added, cut or changed."""
        names = self._names
        added = [
            token | KEEPS_TEXT | ({"content": names[token["content"]], "normalized": False} if is_named else {})
            for token in spec.get("added_tokens") or []
            for is_named in [token["content"] in names]
        ]
        beside: dict[str, Any] = {"post_processor": None, "truncation": None, "padding": None}
        return {
            **spec,
            **beside,
            "added_tokens": added,
            "normalizer": _keeping_text(spec.get("normalizer")),
            "pre_tokenizer": _without_space_in_front(spec.get("pre_tokenizer")),
            "model": self._renamed_model(spec["model"]),
        }

    def in_lark(self, grammar: str) -> str:
        """A grammar in Lark with the ids of special tokens (`<[3]>`) instead of their texts (`<|end|>`)."""

        def with_id(found: re.Match[str]) -> str:
            token_id = self._ids.get(found[1])
            return found[0] if token_id is None else f"<[{token_id}]>"

        return LARK_TOKENS.sub(with_id, grammar)

    def in_output(self, text: bytes) -> bytes:
        """A text of an output, in which added tokens that are not special show as their texts, with their names."""
        for plain, name in self._plain.items():
            text = text.replace(plain, name)
        return text

    def end_id(self) -> int | None:
        """The token that ends an output, found by its text."""
        return max((self._ids[text] for text in END_TEXTS if text in self._ids), default=None)

    def _renamed_model(self, model: Mapping[str, Any]) -> dict[str, Any]:
        names, vocab = self._names, model["vocab"]
        renamed = dict(model)
        if isinstance(vocab, list):  # Unigram: pieces with their scores, whose places are the ids
            renamed["vocab"] = [[names.get(piece, piece), score] for piece, score in vocab]
            return renamed
        within = names.keys() & vocab.keys()
        if not within:
            return renamed
        renamed["vocab"] = {names.get(piece, piece): token_id for piece, token_id in vocab.items()}
        if model.get("unk_token") in within:
            renamed["unk_token"] = names[model["unk_token"]]
        if model.get("merges"):  # conversions of sentencepiece list the merges to every piece, be it an added token
            cut = len(model.get("continuing_subword_prefix") or "")
            pairs = ((merge, merge.split(" ") if isinstance(merge, str) else merge) for merge in model["merges"])
            renamed["merges"] = [
                merge for merge, (a, b) in pairs if a not in within and b not in within and a + b[cut:] not in within
            ]
        return renamed


def _keeping_text(normalizer: dict[str, Any] | None) -> dict[str, Any] | None:
    """Of a normalizer, the parts that only write a text in the letters of the vocabulary: a space as another character,
    or bytes as characters."""
    match normalizer:
        case {"type": "Sequence", "normalizers": parts}:
            kept = [part for part in map(_keeping_text, parts) if part is not None]
            return {"type": "Sequence", "normalizers": kept}
        case {"type": "Replace", "pattern": {"String": " "}} | {"type": "ByteLevel"}:
            return normalizer
    return None


def _without_space_in_front(pre_tokenizer: dict[str, Any] | None) -> dict[str, Any] | None:
    """llguidance does so for Metaspace."""
    if pre_tokenizer is None:
        return None
    if pre_tokenizer.get("type") == "Sequence":
        parts = pre_tokenizer["pretokenizers"]
        return pre_tokenizer | {"pretokenizers": list(map(_without_space_in_front, parts))}
    return pre_tokenizer | {"add_prefix_space": False} if pre_tokenizer.get("type") == "ByteLevel" else pre_tokenizer
