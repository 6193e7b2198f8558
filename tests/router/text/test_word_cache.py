"""Words that are looked up have the ids that the library would give them."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers, trainers

from slipstream.router.protocol.messages import pack_ids
from slipstream.router.text import word_cache
from slipstream.router.text.word_cache import (
    GPT2_WORDS,
    MAX_NEW_WORDS,
    MAX_WORD_CHARS,
    MAX_WORDS,
    WordCache,
    cuts_at_spaces,
    in_ascii,
)

SOURCES = [path.read_text() for path in sorted(Path(__file__).parent.glob("test_*.py"))]
# As the families publish them.
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2 = LLAMA3.replace("{1,3}", "")
GPT4O = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
FAMILIES = {"gpt2": None, "llama3": LLAMA3, "qwen2": QWEN2, "gpt4o": GPT4O}


@cache
def tokenizer(expression: str | None) -> Tokenizer:
    """A small byte-level BPE tokenizer that cuts words by the expression; None: as GPT-2 does."""
    made = Tokenizer(models.BPE())
    if expression is None:
        made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    else:
        split = pre_tokenizers.Split(Regex(expression), behavior="isolated")
        made.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(False, use_regex=False)])
    made.normalizer = normalizers.NFC() if expression == QWEN2 else None
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    made.train_from_iterator(SOURCES, trainers.BpeTrainer(vocab_size=600, initial_alphabet=alphabet))
    made.add_special_tokens(["<|user|>", "<|end|>"])
    made.add_tokens(["<think>"])
    return made


def spec_of(made: Tokenizer) -> dict[str, Any]:
    spec: dict[str, Any] = orjson.loads(made.to_str())
    return spec


def cache_of(made: Tokenizer) -> WordCache | None:
    return WordCache.for_tokenizer(made, spec_of(made))


def ids(made: Tokenizer, text: str) -> bytes:
    return pack_ids(made.encode(text, add_special_tokens=False).ids)


TEXTS = st.text(st.sampled_from(" \n\r\t\v\f'aAbBsStTlLrReE19.,(<|>-_/\x1c\x7f\x00"), max_size=60)
PIECES = st.lists(
    TEXTS | st.sampled_from(["<|user|>", "<|end|>", "<think>", "I'LL ", " o'clock", "\n\n  "]), max_size=6
)


@pytest.mark.parametrize("family", FAMILIES)
@given(pieces=PIECES)
@settings(max_examples=300, deadline=None)
def test_looked_up_ids_are_the_tokenizers(family: str, pieces: list[str]) -> None:
    made = tokenizer(FAMILIES[family])
    words = cache_of(made)
    assert words is not None
    text = "".join(pieces)
    for _ in range(2):  # learnt, then looked up
        found = words.encode(text)
        assert found is None or found == ids(made, text)
    assert found is not None or len(text) > MAX_WORD_CHARS


@pytest.mark.parametrize("family", FAMILIES)
def test_whole_sources_are_looked_up_after_a_while(family: str) -> None:
    made = tokenizer(FAMILIES[family])
    words = cache_of(made)
    assert words is not None
    text = next(source for source in SOURCES if source.isascii())[:4000]
    assert words.encode(text) is None  # more new words than are learnt from one text
    for _ in range(2 + len(text) // MAX_NEW_WORDS):
        found = words.encode(text)
    assert found == ids(made, text)


def test_what_it_does_not_know_is_left_to_the_library() -> None:
    words = cache_of(tokenizer(LLAMA3))
    assert words is not None
    assert words.encode("café") is None
    assert words.encode("x" * (MAX_WORD_CHARS + 1)) is None
    assert words.encode("cafe") == ids(tokenizer(LLAMA3), "cafe")


def test_it_does_not_grow_without_end() -> None:
    made = tokenizer(LLAMA3)
    words = cache_of(made)
    assert words is not None
    words._known.update({f" w{number}": b"" for number in range(MAX_WORDS)})
    assert words.encode("something new") is None
    assert len(words._known) == 0
    assert words.encode("something new") == ids(made, "something new")


def test_a_text_with_more_pieces_than_are_kept_is_looked_up_word_by_word(monkeypatch: pytest.MonkeyPatch) -> None:
    made = tokenizer(LLAMA3)
    words = cache_of(made)
    assert words is not None
    numbers = [f"{number % 8}.{number // 8}" for number in range(64)]
    assert words.encode(" ".join(numbers[:9])) == ids(made, " ".join(numbers[:9]))  # so that some of them are known
    monkeypatch.setattr(word_cache, "MAX_WORDS", 60)
    for _ in range(2):
        assert words.encode(" ".join(numbers)) == ids(made, " ".join(numbers))
        assert len(words._pieces) <= word_cache.MAX_WORDS
    assert words.encode("new 1.1") == ids(made, "new 1.1")
    assert set(words._pieces) == {"1.1"}


@pytest.mark.parametrize("family", FAMILIES)
@given(pieces=st.lists(st.text(st.sampled_from("'aBsT1.(\n\t"), max_size=4), max_size=12))
@settings(max_examples=300, deadline=None)
def test_pieces_between_spaces_have_the_ids_of_the_whole_text(family: str, pieces: list[str]) -> None:
    made = tokenizer(FAMILIES[family])
    words = cache_of(made)
    assert words is not None
    assert words.cuts_at_spaces
    text = " ".join(pieces)
    for _ in range(3):  # its words are learnt, then its pieces, then all is looked up
        assert words.encode(text) == ids(made, text)


def test_a_text_of_known_pieces_is_not_cut_into_words() -> None:
    words = cache_of(tokenizer(LLAMA3))
    assert words is not None
    text = "\n\nOne two, (three) 4567's"
    for _ in range(2):
        words.encode(text)
    assert set(words._pieces) >= {"two,", "(three)", "4567's"}
    words._known = {word: words._known[word] for word in words._words.findall("\n\nOne")}
    assert words.encode(text) == ids(tokenizer(LLAMA3), text)


class CutTexts:
    """An expression that remembers what it was asked to cut."""

    def __init__(self, words: re.Pattern[str]) -> None:
        self._words = words
        self.texts: list[str] = []

    def findall(self, text: str) -> list[str]:
        self.texts.append(text)
        return self._words.findall(text)


@pytest.mark.parametrize("text", ["\nThree two one", "\nOne newest two", "\n\nOne one"])
def test_of_a_text_with_a_new_word_only_that_is_cut_and_learnt(text: str) -> None:
    made = tokenizer(LLAMA3)
    words = cache_of(made)
    assert words is not None
    assert words.encode("\nOne two three one") == ids(made, "\nOne two three one")
    known, cut = set(words._known), CutTexts(words._words)
    words._words = cut  # type: ignore[assignment]
    assert words.encode(text) == ids(made, text)
    new = [piece for piece in ("\nThree", " newest", "\n\nOne") if piece in text]
    assert set(cut.texts) == set(new)
    assert set(words._known) - known <= {word for piece in new for word in cut._words.findall(piece)}


@pytest.mark.parametrize("expression", [r"\w+ \w+|\s+|\S", r"\w+(?=\s)|\s+|\S", r"\w+ ?|\W"])
def test_words_that_reach_across_a_space_are_not_looked_up_piece_by_piece(expression: str) -> None:
    assert not cuts_at_spaces(re.compile(expression, re.ASCII))


def without_words() -> list[tuple[str, Tokenizer]]:
    metaspace = Tokenizer(models.BPE())
    metaspace.pre_tokenizer = pre_tokenizers.Metaspace()
    prefixed = Tokenizer(models.BPE())
    prefixed.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    lowercase = Tokenizer.from_str(tokenizer(None).to_str())
    lowercase.normalizer = normalizers.Lowercase()
    strips = Tokenizer.from_str(tokenizer(None).to_str())
    strips.add_tokens([AddedToken("<mask>", lstrip=True)])
    twice = Tokenizer.from_str(tokenizer(None).to_str())
    digits = pre_tokenizers.Digits(individual_digits=True)
    twice.pre_tokenizer = pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(False)])
    return [
        ("metaspace", metaspace),
        ("prefix space", prefixed),
        ("lower case", lowercase),
        ("a token that strips", strips),
        ("cuts twice", twice),
        ("no pre-tokenizer", Tokenizer(models.BPE())),
        ("unigram", Tokenizer(models.Unigram())),
    ]


@pytest.mark.parametrize(("name", "made"), without_words(), ids=[name for name, _ in without_words()])
def test_tokenizers_that_work_otherwise_have_no_cache(name: str, made: Tokenizer) -> None:
    assert cache_of(made) is None


@pytest.mark.parametrize(
    "expression", [r"\P{L}+", r"\p{Han}+", r"(\p{L}+)", r"[\p{M}]", r"[a-z[0-9]]", r"(?:", r"\p{M}"]
)
def test_an_expression_that_cannot_be_followed_is_refused(expression: str) -> None:
    assert in_ascii(expression) is None
    assert in_ascii(GPT2_WORDS) is not None
