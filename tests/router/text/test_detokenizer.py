"""Incremental detokenisation against the tokenizers library, for both kinds of vocabulary."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from slipstream.router.text.detokenizer import Detokenizer, PieceTable, UnsupportedDecoderError, compile_steps

BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
SENTENCEPIECE = {
    "type": "Sequence",
    "decoders": [
        {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
        {"type": "Strip", "content": " ", "start": 1, "stop": 0},
    ],
}
CORPUS = ["def main(): return 'hello world'", "héllo wörld naïve", "日本語 テキスト 🙂🙃", "the the then there"] * 8


@cache
def byte_level() -> Tokenizer:
    """Byte-level BPE: every byte is a token, characters of several bytes may be split anywhere."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=320,
        special_tokens=["<|end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.add_tokens([AddedToken("<think>", special=False), AddedToken("  two  spaces", special=False)])
    return tokenizer


@cache
def sentencepiece() -> Tokenizer:
    """Metaspace pieces with byte fallback, as in Llama 2."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    pieces += ["▁", "▁the", "▁hello", "lo", "é", "日本", "▁▁▁", "a", "b", "\n"]
    tokenizer = Tokenizer(
        models.BPE({piece: i for i, piece in enumerate(pieces)}, [], byte_fallback=True, unk_token="<unk>")
    )
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    return tokenizer


def table(tokenizer: Tokenizer, decoder: dict[str, object], *hidden: str) -> PieceTable:
    return PieceTable(tokenizer, decoder, [tokenizer.token_to_id(text) for text in hidden])


def pieces_of(detokenizer: Detokenizer, token_ids: list[int]) -> list[str]:
    return [*(detokenizer.add(token_id) for token_id in token_ids), detokenizer.finish()]


@settings(deadline=None)
@given(st.lists(st.integers(0, 321), max_size=60))
def test_any_byte_level_ids_give_the_text_of_a_full_decode(token_ids: list[int]) -> None:
    tokenizer = byte_level()
    pieces = pieces_of(Detokenizer(table(tokenizer, BYTE_LEVEL, "<|end|>")), token_ids)
    assert "".join(pieces) == tokenizer.decode(token_ids, skip_special_tokens=True)


@settings(deadline=None)
@given(st.text(max_size=40))
def test_valid_text_never_shows_half_a_character_on_the_way(text: str) -> None:
    tokenizer = byte_level()
    token_ids = tokenizer.encode(text.replace("\ufffd", "")).ids
    pieces = pieces_of(Detokenizer(table(tokenizer, BYTE_LEVEL, "<|end|>")), token_ids)
    assert not any("\ufffd" in piece for piece in pieces)
    assert "".join(pieces) == tokenizer.decode(token_ids, skip_special_tokens=True)


@st.composite
def sentencepiece_ids(draw: st.DrawFn) -> list[int]:
    """Whole pieces, characters in bytes, and single broken bytes that do not touch other byte tokens."""
    tokenizer = sentencepiece()
    parts = draw(
        st.lists(st.one_of(st.integers(259, 268), st.characters(codec="utf-8"), st.just(b"\xff")), max_size=30)
    )
    ids: list[int] = []
    for part in parts:
        if isinstance(part, int):
            ids.append(part)
        elif isinstance(part, bytes):
            ids += [267, *(3 + byte for byte in part), 267]
        else:
            ids += [3 + byte for byte in part.encode()]
    assert all(token_id < tokenizer.get_vocab_size() for token_id in ids)
    return ids


@settings(deadline=None)
@given(sentencepiece_ids())
def test_sentencepiece_output_continues_its_prompt_as_a_full_decode_does(token_ids: list[int]) -> None:
    tokenizer = sentencepiece()
    prompt = [tokenizer.token_to_id("▁the")]
    text = "".join(pieces_of(Detokenizer(table(tokenizer, SENTENCEPIECE, "<s>", "</s>")), token_ids))
    assert tokenizer.decode(prompt) + text == tokenizer.decode(prompt + token_ids)


def test_a_character_in_byte_tokens_appears_with_its_last_byte() -> None:
    tokenizer = sentencepiece()
    detokenizer = Detokenizer(table(tokenizer, SENTENCEPIECE))
    ids = [3 + byte for byte in "🙂".encode()]
    assert pieces_of(detokenizer, ids) == ["", "", "", "🙂", ""]


@pytest.mark.parametrize(
    ("make", "decoder", "tokens", "expected"),
    [  # E2 82, the beginning of a euro sign
        (byte_level, BYTE_LEVEL, ("â", "Ĥ"), "\ufffd"),
        (sentencepiece, SENTENCEPIECE, ("<0xE2>", "<0x82>"), "\ufffd\ufffd"),
    ],
)
def test_an_unfinished_character_becomes_a_replacement_at_the_end(
    make: Callable[[], Tokenizer], decoder: dict[str, object], tokens: tuple[str, str], expected: str
) -> None:
    tokenizer = make()
    ids = [tokenizer.token_to_id(token) for token in tokens]
    assert pieces_of(Detokenizer(table(tokenizer, decoder)), ids) == ["", "", expected]
    assert tokenizer.decode(ids) == expected


def test_control_tokens_are_silent_and_do_not_break_a_character() -> None:
    tokenizer = byte_level()
    end = tokenizer.token_to_id("<|end|>")
    first, second = tokenizer.token_to_id("Ã"), tokenizer.token_to_id("©")
    detokenizer = Detokenizer(table(tokenizer, BYTE_LEVEL, "<|end|>"))
    assert pieces_of(detokenizer, [end, first, end, second]) == ["", "", "", "é", ""]


def test_an_id_without_a_token_is_empty() -> None:
    detokenizer = Detokenizer(table(byte_level(), BYTE_LEVEL))
    assert detokenizer.add(999_999) == ""


def test_bytes_of_a_control_token_are_those_of_its_name() -> None:
    tokenizer = byte_level()
    assert table(tokenizer, BYTE_LEVEL, "<|end|>").bytes_of(tokenizer.token_to_id("<|end|>")) == b"<|end|>"


@pytest.mark.parametrize("decoder", [None, {"type": "WordPiece"}, {"type": "Sequence", "decoders": [{"type": "CTC"}]}])
def test_a_decoder_of_another_kind_is_refused(decoder: dict[str, object] | None) -> None:
    with pytest.raises(UnsupportedDecoderError, match="decoder"):
        compile_steps(decoder)
