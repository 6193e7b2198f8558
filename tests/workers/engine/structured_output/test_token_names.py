"""Forced text that spells added tokens: a grammar stays in force, and its text is written with ordinary tokens."""

from __future__ import annotations

import json
import random
import re
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

from slipstream.router.protocol.messages import GrammarSpec
from slipstream.router.protocol.phased_grammar import Phase, PhasedGrammar, Trigger
from slipstream.router.structured_output.output_trial import complaint_of_output
from slipstream.workers.engine.structured_output.grammars import GrammarCompiler
from slipstream.workers.engine.structured_output.token_bytes import TokenBytes
from slipstream.workers.engine.structured_output.token_names import TokenNames

DEMO = Path(__file__).parents[4] / "models" / "slipstream-demo"
SPECIAL = ["<s>", "</s>", "<|im_start|>", "<|im_end|>", "[INST]"]
PLAIN = ["<think>", "</think>", "<tool_call>", "</tool_call>"]
RUNS = ["  ", "\t\t"]
PIECES = ["▁a", "th", "in", "think", "<think", "im", "end", "im_end", "<|", "|>"]
MERGES = ["▁ a", "t h", "i n", "in k", "th ink", "< think", "i m", "e n", "en d", "< |", "| >"]


def byte_level(normalizer: Any = None, prefix_space: bool = False) -> Tokenizer:
    names = dict.fromkeys([*sorted(pre_tokenizers.ByteLevel.alphabet()), "Ġa", "th", "in", "ink", "think", "<think"])
    names |= dict.fromkeys(["im", "en", "end", "<|", "|>"])
    merges = [tuple(merge.replace("▁", "Ġ").split(" ")) for merge in MERGES]
    made = Tokenizer(models.BPE({name: number for number, name in enumerate(names)}, merges))
    made.normalizer = normalizer
    made.pre_tokenizer = pre_tokenizers.ByteLevel(prefix_space)
    made.decoder = decoders.ByteLevel()
    return made


def sentencepiece(unigram: bool = False) -> Tokenizer:
    """Its added tokens are pieces like others, to which merges lead, as in conversions."""
    letters = [chr(byte) for byte in range(33, 127)]
    names = [
        "<unk>",
        *SPECIAL,
        *(f"<0x{byte:02X}>" for byte in range(256)),
        "▁",
        *letters,
        "ink",
        "en",
        *PIECES,
        *PLAIN,
    ]
    if unigram:
        made = Tokenizer(models.Unigram([(name, -float(i)) for i, name in enumerate(names)], 0, byte_fallback=True))
    else:
        merges = [tuple(merge.split(" ")) for merge in [*MERGES, "<think >"]]
        vocab = {name: number for number, name in enumerate(names)}
        made = Tokenizer(models.BPE(vocab, merges, byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    made.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    made.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    made.add_special_tokens(["<unk>"])
    return made


def with_added(tokenizer: Tokenizer) -> Tokenizer:
    tokenizer.add_special_tokens(SPECIAL)
    tokenizer.add_tokens([*PLAIN, *RUNS])
    return tokenizer


KINDS: dict[str, Callable[[], Tokenizer]] = {
    "demo": lambda: Tokenizer.from_file(str(DEMO / "tokenizer.json")),
    "byte level": lambda: with_added(byte_level()),
    "normal forms": lambda: with_added(byte_level(normalizers.Sequence([normalizers.NFC(), normalizers.Lowercase()]))),
    "prefix space": lambda: with_added(byte_level(prefix_space=True)),
    "byte fallback": lambda: with_added(sentencepiece()),
    "unigram": lambda: with_added(sentencepiece(unigram=True)),
}


class Vocabulary:
    def __init__(self, folder: Path, tokenizer: Tokenizer) -> None:
        (folder / "tokenizer.json").write_text(tokenizer.to_str())
        self.spec: dict[str, Any] = json.loads(tokenizer.to_str())
        self.tokenizer = tokenizer
        self.size = tokenizer.get_vocab_size()
        self.added = {token["content"]: token["id"] for token in self.spec["added_tokens"]}
        self.eos = self.added.get("<|im_end|>", 2)
        self.compiler = GrammarCompiler(folder, self.size, [self.eos])

    def drawn(self, grammar: GrammarSpec, begun: tuple[int, ...] = (), seed: int = 0) -> list[int]:
        """An output of tokens that are allowed, drawn at random, to its end."""
        rng = random.Random(seed)
        tokens = array("i", [1, *begun])
        follower = self.compiler.follow(grammar, tokens, 1)
        mask = np.empty(-(-self.size // 8), np.uint8)
        while not follower.is_at_end:
            follower.write_allowed(mask)
            allowed = np.flatnonzero(np.unpackbits(mask, bitorder="little")).tolist()
            assert allowed, f"nothing can follow {self.text(tokens[1:].tolist())}"
            token_id = rng.choice(allowed)
            if token_id == self.eos:
                break
            tokens.append(token_id)
        return tokens[1:].tolist()

    def text(self, token_ids: list[int]) -> str:
        return b"".join(self.bytes.of[token_id] for token_id in token_ids).decode()

    @property
    def bytes(self) -> TokenBytes:
        found = self.compiler._token_bytes
        assert found is not None
        return found


@pytest.fixture(scope="module", params=KINDS)
def vocabulary(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Vocabulary:
    return Vocabulary(tmp_path_factory.mktemp("vocabulary"), KINDS[request.param]())


@pytest.fixture(scope="module")
def qwen(tmp_path_factory: pytest.TempPathFactory) -> Vocabulary:
    return Vocabulary(tmp_path_factory.mktemp("qwen"), KINDS["byte level"]())


def test_forced_text_may_spell_added_tokens(vocabulary: Vocabulary) -> None:
    texts = [*vocabulary.added, *(f"a {text}think {text}" for text in vocabulary.added), "e\u0301 A  \u212b"]
    for seed, text in enumerate(texts):
        const = {"type": "object", "properties": {"a": {"const": text}}, "required": ["a"]}
        name = {"type": "object", "properties": {text: {"type": "null"}}, "required": [text]}
        expected = {"a": text}, {text: None}, text
        for schema, value in zip((const, name, {"enum": [text]}), expected, strict=True):
            spec = json.dumps(schema | {"additionalProperties": False})
            assert json.loads(vocabulary.text(vocabulary.drawn(GrammarSpec("json", spec), seed=seed))) == value
        choices = GrammarSpec("choice", json.dumps([f"{text}y", f"x{text}y"]))
        for grammar in (GrammarSpec("regex", f"x?{re.escape(text)}y"), choices):
            assert vocabulary.text(vocabulary.drawn(grammar, seed=seed)).removeprefix("x") == f"{text}y"


def test_forced_text_has_the_tokens_that_the_tokenizer_makes_of_it(vocabulary: Vocabulary) -> None:
    grammar = GrammarSpec("grammar", r'start: "think end\t\tthink"')
    plain = Tokenizer.from_str(vocabulary.tokenizer.to_str())
    if "▁" in plain.get_vocab():
        plain.normalizer = normalizers.Replace(" ", "▁")  # the output goes on
    elif plain.pre_tokenizer is not None and vocabulary.size < 1000:
        plain.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    expected = plain.encode("think end\t\tthink", add_special_tokens=False).ids
    assert vocabulary.drawn(grammar) == expected


def test_only_names_change(vocabulary: Vocabulary) -> None:
    spec = vocabulary.spec
    renamed = Tokenizer.from_str(json.dumps(TokenNames(spec["added_tokens"]).renamed(spec)))
    before, after = vocabulary.tokenizer.get_added_tokens_decoder(), renamed.get_added_tokens_decoder()
    assert after.keys() == before.keys()
    for token_id in range(vocabulary.size):
        if token_id in before and before[token_id].content in RUNS:
            assert after[token_id].content == before[token_id].content
        elif token_id not in before:
            assert renamed.id_to_token(token_id) == vocabulary.tokenizer.id_to_token(token_id)
        else:
            assert "\ufdd0" in after[token_id].content
    assert renamed.get_vocab_size() == vocabulary.size


def test_a_grammar_in_lark_names_special_tokens_as_before(vocabulary: Vocabulary) -> None:
    name = "<|tool_call|>" if "<|tool_call|>" in vocabulary.added else "<think>"
    lark = f'start: {name} "{name}" r // {name}\nr: /{re.escape(name)}\\/?/'
    output = vocabulary.drawn(GrammarSpec("grammar", lark))
    marker = vocabulary.added[name]
    assert output.count(marker) == 1
    assert output[0] == marker
    assert vocabulary.text(output[1:]).removesuffix("/") == name * 2


@pytest.mark.parametrize("is_token", [True, False])
def test_a_call_begins_with_a_token_that_is_not_special_and_may_hold_its_text(qwen: Vocabulary, is_token: bool) -> None:
    """Its beginning may also be spelled."""
    marker, end = qwen.added["<tool_call>"], qwen.added["</tool_call>"]
    const = json.dumps({"enum": ["<tool_call>", "a</tool_call>", "<|im_end|>", "</think>"]})
    calls = Phase(grammar=f'start: <[{marker}]> "\\n" value "\\n" <[{end}]>\nvalue: %json {const}')
    thinking = Phase((Trigger(("</think>",), 1),), may_end=False)
    grammar = PhasedGrammar((thinking, Phase((Trigger(("<tool_call>",), 2),)), calls)).spec()
    assert complaint_of_output(grammar.spec) is None
    begin = [marker] if is_token else byte_level().encode("<tool_call>").ids
    begun = (*qwen.tokenizer.encode("think").ids, qwen.added["</think>"], *begin)
    seen = set()
    for seed in range(40):
        output = qwen.drawn(grammar, begun, seed)
        assert output[: len(begun)] == list(begun)
        assert output[-1] == end
        assert not {marker, end, qwen.eos} & set(output[len(begun) : -1])
        seen.add(json.loads(qwen.text(output[len(begun) : -1])))
    assert len(seen) == 4


def test_a_text_of_a_call_may_look_like_a_marker_in_the_trial() -> None:
    for text in ("<|8|>", "<|0|>", "<|end|>"):
        phase = Phase(grammar=f"start: <[8]> value\nvalue: %json {json.dumps({'const': text})}")
        grammar = PhasedGrammar((Phase((Trigger((8,), 1),)), phase), shown_ids=(8,)).spec()
        assert complaint_of_output(grammar.spec) is None


def test_an_output_that_has_left_a_grammar_that_holds_from_the_start_cannot_go_on(qwen: Vocabulary) -> None:
    grammar = PhasedGrammar((Phase(grammar='start: "think"'),)).spec()
    follower = qwen.compiler.follow(grammar, array("i", [1, qwen.added["<think>"]]), 1)
    mask = np.empty(-(-qwen.size // 8), np.uint8)
    follower.write_allowed(mask)
    assert follower.restricts
    assert not follower.is_at_end
    assert not mask.any()
