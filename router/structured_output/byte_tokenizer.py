"""A tokenizer with one token for each byte, and some special tokens: what grammars are tried with, so that no verdict
depends on a model's vocabulary."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import count

NUM_BYTES = 256


def byte_tokenizer_json(special_tokens: Sequence[str]) -> str:
    """A tokenizer.json. The token of a byte has its number; the special tokens follow, and the last of them ends an
    output."""
    added = [
        {
            "id": token_id,
            "content": text,
            "special": True,
            "normalized": False,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
        }
        for token_id, text in enumerate(special_tokens, NUM_BYTES)
    ]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    return json.dumps(
        {
            "version": "1.0",
            "added_tokens": added,
            "pre_tokenizer": byte_level,
            "decoder": byte_level,
            "model": {"type": "BPE", "vocab": _letters(), "merges": []},
        }
    )


def _letters() -> dict[str, int]:
    """The bytes by how byte-level vocabularies write them: as themselves if they are visible characters of Latin-1,
    else as the characters from 256 on, in order (GPT-2's `bytes_to_unicode`)."""
    visible = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = count(NUM_BYTES)
    return {chr(byte if byte in visible else next(others)): byte for byte in range(NUM_BYTES)}
