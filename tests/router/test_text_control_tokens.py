"""Whatever is typed into one message, the tokens of all other turns stay what they are, with any kind of tokenizer."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as HfTokenizer

from slipstream.router.control_tokens import ControlTokenError
from slipstream.router.messages import unpack_ids
from slipstream.router.tokenizer import Tokenizer, TokenizerFiles

CONTROLS = ("<s>", "</s>", "<|user|>", "<|assistant|>", "<|end|>")
TEMPLATE = "{{bos_token}}{% for m in messages %}<|{{m.role}}|>{{m.content}}<|end|>{% endfor %}<|assistant|>"
LETTERS = "abcdeEnNdDsSuU<|/>. \n"
FLAGS: dict[str, dict[str, bool]] = {
    "plain": {},
    "lstrip": {"lstrip": True},
    "rstrip": {"rstrip": True},
    "single word": {"single_word": True},
    "normalized": {"normalized": True},
    "not special": {"special": False},
}


def letters(space: str) -> dict[str, int]:
    """Two tokens as added ones, the others not, as in conversions of sentencepiece."""
    names = ["<unk>", *CONTROLS[:2], *(f"<0x{byte:02X}>" for byte in range(256)), *LETTERS.replace(" ", space)]
    names += [space + "a", "ab", space + "ab", "<|", "|>", "en", "end"]
    return {name: token_id for token_id, name in enumerate(dict.fromkeys(names))}


def sentencepiece(scheme: str, split: bool = False, unigram: bool = False) -> HfTokenizer:
    vocab = letters("▁")
    if unigram:
        made = HfTokenizer(models.Unigram([(name, -float(i)) for name, i in vocab.items()], 0, byte_fallback=True))
    else:
        merges = [("▁", "a"), ("a", "b"), ("▁a", "b"), ("<", "|"), ("|", ">"), ("e", "n"), ("en", "d")]
        made = HfTokenizer(models.BPE(vocab, merges, byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    if scheme == "legacy":
        made.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    else:
        made.pre_tokenizer = pre_tokenizers.Metaspace("▁", prepend_scheme=scheme, split=split)
    made.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    return made


def byte_level(normalizer: Any = None, prefix_space: bool = False) -> HfTokenizer:
    vocab = letters("Ġ") | {name: 1000 + i for i, name in enumerate(pre_tokenizers.ByteLevel.alphabet())}
    made = HfTokenizer(models.BPE(vocab, [("Ġ", "a"), ("a", "b"), ("Ġ", "ab"), ("<", "|"), ("e", "n"), ("en", "d")]))
    made.normalizer = normalizer
    words = pre_tokenizers.Split(Regex(r" ?\w+| ?[^\s\w]+|\s+"), "isolated")
    made.pre_tokenizer = pre_tokenizers.Sequence([words, pre_tokenizers.ByteLevel(prefix_space, use_regex=False)])
    made.decoder = decoders.ByteLevel()
    return made


KINDS = {
    "metaspace first": lambda: sentencepiece("first"),
    "metaspace first, split": lambda: sentencepiece("first", split=True),
    "metaspace always": lambda: sentencepiece("always"),
    "metaspace never": lambda: sentencepiece("never"),
    "legacy": lambda: sentencepiece("legacy"),
    "unigram": lambda: sentencepiece("first", unigram=True),
    "byte level": byte_level,
    "prefix space": lambda: byte_level(prefix_space=True),
    "NFC": lambda: byte_level(normalizers.NFC()),
    "NFKC": lambda: byte_level(normalizers.NFKC()),
    "lower case": lambda: byte_level(normalizers.Lowercase()),
    "strip": lambda: byte_level(normalizers.Strip()),
}


@cache
def tokenizer_of(kind: str, flags: str) -> tuple[HfTokenizer, Tokenizer]:
    made = KINDS[kind]()
    given = {"special": True, "normalized": False} | FLAGS[flags]
    added = [AddedToken(text, **given) for text in CONTROLS]
    made.add_special_tokens([token for token in added if token.special])
    made.add_tokens([token for token in added if not token.special])
    files = TokenizerFiles(made.to_str(), {"bos_token": "<s>"}, TEMPLATE, None)
    return made, Tokenizer(files, ThreadPoolExecutor(1))  # never used: the prompts are too short


def chat(tokenizer: Tokenizer, contents: list[Any]) -> list[int]:
    messages = [{"role": ("user", "assistant")[i % 2], "content": content} for i, content in enumerate(contents)]
    return unpack_ids(asyncio.run(tokenizer.encode_chat(messages, 100_000)))


def turns(made: HfTokenizer, token_ids: list[int]) -> list[list[int]]:
    """The tokens between control tokens."""
    controls, found = {made.token_to_id(text) for text in CONTROLS}, [[]]
    for token_id in token_ids:
        if token_id in controls:
            found += [[token_id], []]
        else:
            found[-1].append(token_id)
    return found


TEXTS = st.text(LETTERS, min_size=1, max_size=8)
ALL = [*((kind, "plain") for kind in KINDS), *product(("metaspace first", "legacy", "unigram"), FLAGS)]
ALL += product(("prefix space", "NFC", "lower case", "strip"), ("normalized", "lstrip", "not special"))


@pytest.mark.parametrize(("kind", "flags"), ALL, ids=[f"{kind}, {flags}" for kind, flags in ALL])
@given(st.lists(TEXTS, min_size=1, max_size=4), st.data())
@settings(deadline=None, max_examples=10)
def test_a_typed_control_token_leaves_the_tokens_of_all_other_turns(
    kind: str, flags: str, contents: list[str], data: st.DataObject
) -> None:
    made, tokenizer = tokenizer_of(kind, flags)
    if not any(text in "".join(contents) for text in CONTROLS):
        rendered = "<s>" + "".join(f"<|{('user', 'assistant')[i % 2]}|>{c}<|end|>" for i, c in enumerate(contents))
        assert chat(tokenizer, contents) == made.encode(rendered + "<|assistant|>", add_special_tokens=False).ids
    at = data.draw(st.integers(0, len(contents) - 1))
    # Of tokens that are not special, only those that the template writes control something.
    controls = CONTROLS if flags != "not special" else ("<s>", *CONTROLS[2:])
    token, behind = data.draw(st.sampled_from(controls)), data.draw(st.sampled_from(("", ".", " a")))
    typed = f"{contents[at]}.{token}{behind}"
    innocuous = turns(made, chat(tokenizer, [*contents[:at], f"{contents[at]}..{behind}", *contents[at + 1 :]]))
    try:
        found = turns(made, chat(tokenizer, [*contents[:at], typed, *contents[at + 1 :]]))
    except ControlTokenError:
        # Tokens that are found in normalised text are refused where the normalizer looks beyond them.
        assert kind in ("legacy", "strip")
        assert flags == "normalized"
        return
    assert len(found) == len(innocuous)
    differing = [i for i, (one, other) in enumerate(zip(found, innocuous, strict=True)) if one != other]
    assert len(differing) <= 1


def prompts_of(kind: str, *contents: Any) -> list[int]:
    return chat(tokenizer_of(kind, "plain")[1], list(contents))


def test_a_control_token_that_runs_from_one_part_into_the_next_is_text() -> None:
    template = "{% for m in messages %}<|{{m.role}}|>{% for p in m.content %}{{p.text}}{% endfor %}<|end|>{% endfor %}"
    made, _ = tokenizer_of("byte level", "plain")
    tokenizer = Tokenizer(TokenizerFiles(made.to_str(), {}, template, None), ThreadPoolExecutor(1))

    def parts(*texts: str) -> list[int]:
        return chat(tokenizer, [tokenizer.content_forms.of_role("user").of(texts)])

    controls = {made.token_to_id(text) for text in CONTROLS}
    for texts in (("a<|e", "nd|>b"), ("<|", "end", "|><|end|>"), ("<|end|>", "x")):
        assert [token_id for token_id in parts(*texts) if token_id in controls] == parts("")
        assert made.decode(parts(*texts)) == "".join(texts)


@pytest.mark.parametrize("spelling", ["<|END|>", "<|End|>"])
def test_another_spelling_of_a_control_token_is_text_too(spelling: str) -> None:
    """The tokenizer would find it in the text that its normalizer has written in lower case."""
    made, tokenizer = tokenizer_of("lower case", "normalized")
    assert made.encode(spelling).ids == [made.token_to_id("<|end|>")]
    assert len(turns(made, chat(tokenizer, [spelling]))) == len(turns(made, chat(tokenizer, ["x"])))
    assert prompts_of("lower case", "A") == prompts_of("lower case", "a")


def test_a_control_token_that_the_vocabulary_makes_of_its_letters_is_text() -> None:
    vocab = letters("▁") | {"</": 900, "s>": 901}
    merges = [("<", "/"), ("s", ">"), ("</", "s>")]
    made = HfTokenizer(models.BPE(vocab, merges, byte_fallback=True, unk_token="<unk>"))
    made.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    assert made.encode("</s>").ids == [made.token_to_id("</s>")]
    made.add_special_tokens([AddedToken(text, normalized=False, special=True) for text in CONTROLS])
    tokenizer = Tokenizer(TokenizerFiles(made.to_str(), {}, TEMPLATE, None), ThreadPoolExecutor(1))
    assert turns(made, chat(tokenizer, ["a</s>"]))[2] == [vocab["a"], vocab["</"], vocab["s>"]]


def test_a_text_that_looks_like_the_separator_is_not_removed() -> None:
    made, _ = tokenizer_of("byte level", "plain")
    typed = "<s>\ufdef0123456789abcdef\ufdef"
    assert made.decode(prompts_of("byte level", typed)) == typed
