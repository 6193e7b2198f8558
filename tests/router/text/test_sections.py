import json
import random
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers

from slipstream.router.protocol.messages import pack_ids
from slipstream.router.text.memory.prompt_memory import PromptMemory
from slipstream.router.text.memory.sections import Sections
from slipstream.router.text.word_cache import WordCache

WORDS = [
    "the",
    "quick",
    "x<y",
    "naïve",
    "日本語",
    "\n\n",
    "  ",
    "it's",
    "1234567",
    "\t",
    "</b>",
    "…",
    "a_b(c)",
    "é",
    "e\u0301",
]
TOKENS = ["<|user|>", "<|end|>", "<|user", "<tool call>"]
ALPHABET = [*map(chr, range(33, 127)), *"Ġ▁ĊċĉàéïÃ©¯", "##a"]


def byte_level() -> Tokenizer:
    made = Tokenizer(models.BPE({c: i for i, c in enumerate(pre_tokenizers.ByteLevel.alphabet())}, []))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return made


def prefixed() -> Tokenizer:
    made = byte_level()
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    return made


def sentencepiece() -> Tokenizer:
    vocab = {c: i for i, c in enumerate(["<unk>", *ALPHABET, "▁the", "▁t"])}
    made = Tokenizer(models.BPE(vocab, [("▁", "t")], unk_token="<unk>", fuse_unk=True))
    made.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    return made


def metaspace() -> Tokenizer:
    made = Tokenizer(models.Unigram([("<unk>", 0.0), *((c, -2.0) for c in ALPHABET), ("▁the", -1.0)], 0, False))
    made.normalizer = normalizers.NFKC()
    made.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    made.decoder = decoders.Metaspace()
    return made


def wordpiece() -> Tokenizer:
    made = Tokenizer(models.WordPiece({c: i for i, c in enumerate(["[UNK]", *ALPHABET])}, unk_token="[UNK]"))
    made.normalizer = normalizers.BertNormalizer()
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return made


FAMILIES = {make.__name__: make for make in (byte_level, prefixed, sentencepiece, metaspace, wordpiece)}
FLAGS: dict[str, dict[str, bool]] = {
    "plain": {},
    "rstrip": {"rstrip": True},
    "lstrip": {"lstrip": True},
    "word": {"single_word": True},
    "normalised": {"normalized": True},
}


def sections_of(made: Tokenizer, max_bytes: int = 1 << 20) -> Sections:
    spec: dict[str, Any] = json.loads(made.to_str())
    words = WordCache.for_tokenizer(made, spec)
    return Sections(PromptMemory(max_bytes), spec, words is not None and words.cuts_at_spaces)


def prompt(draw: random.Random, num_words: int) -> str:
    texts = [draw.choice(TOKENS) if draw.random() < 0.05 else draw.choice(WORDS) for _ in range(num_words)]
    return "".join(text + draw.choice(["", " ", " ", " "]) for text in texts)


@pytest.mark.parametrize("flags", FLAGS)
@pytest.mark.parametrize("family", FAMILIES)
def test_the_ids_of_the_sections_are_those_of_the_whole_prompt(family: str, flags: str) -> None:
    made = FAMILIES[family]()
    made.add_special_tokens([AddedToken(token, **({"normalized": False} | FLAGS[flags])) for token in TOKENS])
    made.add_tokens([AddedToken("naïve", normalized=True)])
    sections = sections_of(made)

    def encode(text: str) -> bytes:
        return pack_ids(made.encode(text, add_special_tokens=False).ids)

    draw = random.Random(family + flags)
    num_sections = 0
    for num_words in (40, 400, 2500):
        text = prompt(draw, num_words)
        parts = sections.of(text)
        assert "".join(parts) == text
        assert b"".join(map(encode, parts)) == encode(text)
        num_sections += len(parts)
    assert (num_sections > 10) is (flags in ("plain", "rstrip"))


def test_a_long_section_is_cut_between_words_where_these_are_known_to_begin_at_spaces() -> None:
    made = byte_level()
    made.add_special_tokens(["<|user|>"])
    text = "some words it's 12 and x<y, naïve or not\n" * 1000
    parts = sections_of(made).of(text)
    assert max(map(len, parts)) < 9000 < len(text)
    ids = [token_id for part in parts for token_id in made.encode(part, add_special_tokens=False).ids]
    assert ids == made.encode(text, add_special_tokens=False).ids
    made.add_tokens([AddedToken("or not", normalized=False)])  # which would be cut in two
    assert len(sections_of(made).of(text.replace("or not", "but"))) == 1


def test_all_but_the_last_sections_of_a_prompt_are_those_of_a_longer_one() -> None:
    made = byte_level()
    made.add_special_tokens(TOKENS)
    sections, text = sections_of(made), prompt(random.Random(3), 8000)
    whole = sections.of(text)
    for end in (700, 5_000, 20_000, len(text) - 3):
        begin = sections.last_start(text, end)
        settled = [part for at, part in zip(starts(whole), whole, strict=True) if at < begin]
        assert sum(map(len, settled)) == begin
        assert sections.of(text[:end] + "<|user|> something else " * 40)[: len(settled)] == settled


def starts(parts: list[str]) -> list[int]:
    at, found = 0, []
    for part in parts:
        found.append(at)
        at += len(part)
    return found


def test_a_section_is_encoded_once_for_each_tenant() -> None:
    made = byte_level()
    made.add_special_tokens(TOKENS)
    sections, encoded = sections_of(made), list[str]()

    def encode(text: str) -> bytes:
        encoded.append(text)
        return text.encode()

    for tenant in ("a", "a", "b"):
        known = sections.known(tenant, ["one", "two"])
        assert sections.learn(tenant, ["one", "two"], known, encode) == 0
        assert known == [b"one", b"two"]
    assert encoded == ["one", "two", "one", "two"]


def test_the_memory_is_bounded_and_keeps_what_is_in_use() -> None:
    memory = PromptMemory(100_000)
    for number in range(1000):
        memory.put(("a", number), b"", 1000)
        if number % 10 == 0:
            assert memory.get(("a", 0)) is not None
        assert memory.num_bytes <= 100_000
    assert memory.get(("a", 999)) is not None
    assert memory.get(("a", 500)) is None
    memory.put(("a", "large"), b"", 60_000)
    assert memory.get(("a", "large")) is None


def test_what_is_used_in_turn_stays_as_long_as_all_of_it_fits() -> None:
    memory = PromptMemory(100_000)
    for number in range(80):
        memory.put(number, b"", 1000)
    for turn in range(3):
        for number in range(80):
            assert memory.get(number) is not None
            memory.drop(number)
            memory.put(number, b"", 1000 + turn)


def test_what_is_dropped_no_longer_takes_memory() -> None:
    memory = PromptMemory(100_000)
    for number in range(100):
        memory.put(number, b"", 10_000)
        memory.drop(number)
    assert memory.num_bytes == 0
    memory.put("last", b"", 40_000)
    assert memory.get("last") is not None


def test_no_memory_is_off() -> None:
    memory = PromptMemory(0)
    memory.put("a", b"", 1)
    assert not memory.is_on
    assert memory.get("a") is None
