"""The check of architectures itself: what counts as equal, and what its document says."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from scripts.architectures_check.document import KEPT, page
from scripts.architectures_check.main import merge, report_losses
from scripts.architectures_check.reference import TIE, Reference
from scripts.architectures_check.row import Result, Row
from scripts.architectures_check.strength import strength
from scripts.architectures_check.tiny_models.tiny_config import model_types, tiny_configs
from scripts.architectures_check.variants import VARIANTS

VOCAB_SIZE = 300


class CountingModel:
    """The best token after a token is the next number; the one after that is as good within `gap`."""

    def __init__(self, gap: float) -> None:
        self._gap = gap

    def __call__(self, tokens: torch.Tensor, use_cache: bool) -> Any:
        return SimpleNamespace(logits=self._scores(tokens[0])[None])

    def forward(self, tokens: torch.Tensor) -> None: ...

    def generate(self, tokens: torch.Tensor, max_new_tokens: int, **_: Any) -> torch.Tensor:
        ids = tokens[0].tolist()
        for _ in range(max_new_tokens):
            ids.append(int(self._scores(torch.tensor(ids))[-1].argmax()))
        return torch.tensor([ids])

    def _scores(self, ids: torch.Tensor) -> torch.Tensor:
        scores = torch.zeros(len(ids), VOCAB_SIZE)
        rows = torch.arange(len(ids))
        scores[rows, (ids + 1) % VOCAB_SIZE] = 1.0
        scores[rows, (ids + 2) % VOCAB_SIZE] = 1.0 - self._gap
        return scores


def reference(gap: float) -> Reference:
    return Reference(CountingModel(gap))  # type: ignore[arg-type]


def test_the_tokens_of_the_reference_are_equal() -> None:
    known = reference(0.5)
    assert known.inconsistency() == ""
    assert known.difference(1, known.tokens[1]) == ""


def test_another_token_is_a_difference_unless_its_score_ties() -> None:
    for gap, is_equal in ((TIE / 2, True), (TIE * 3, False)):
        known = reference(gap)
        first = known.tokens[0][0]
        other = [(first + 1 + at) % VOCAB_SIZE for at in range(len(known.tokens[0]))]
        assert (known.difference(0, other) == "") is is_equal


def test_what_follows_a_tie_must_be_what_the_reference_continues_with() -> None:
    known = reference(TIE / 2)
    first = known.tokens[0][0]
    wrong = [first + 1, *known.tokens[0][1:-1], 7]
    assert known.difference(0, wrong).startswith("prompt 0, token ")


def test_fewer_tokens_are_a_difference() -> None:
    known = reference(0.5)
    assert known.difference(2, known.tokens[2][:-1]) == "prompt 2: 9 tokens, expected 10"


def test_a_model_that_looks_at_nothing_but_the_last_token_is_a_weak_test() -> None:
    assert not strength(reference(0.5)).is_strong


def row(name: str, **values: Any) -> Row:
    return Row(name, f"{name}Class", is_strong=True, **values)


EQUAL = {name: Result("equal") for name in VARIANTS}


def test_the_document_counts_and_keeps_what_stands_by_hand_at_its_end() -> None:
    rows = {
        "llama": row("llama", path="flat", variants=EQUAL),
        "opt": row(
            "opt",
            path="flat",
            variants=EQUAL | {"tp2": Result("refused", "no plan"), "unlike_tp": Result("refused", "no plan")},
        ),
        "bart": row("bart", path="cached", variants=EQUAL),
        "bert": row("bert", path="flat", variants=EQUAL),
        "reformer": row("reformer", refused="it has | no pages"),
        "llama4": row("llama4", not_built="it needs ears"),
        "mpt": row("mpt", path="cached", variants={"ragged": Result("differs", "prompt 0")}),
    }
    text = page(rows, f"# Old\n\n{KEPT}\n\nBy hand.\n")
    assert "2 of 7 give the same tokens in every variant that they are served in, 1 of them" in text
    assert "1 decoders of encoder-decoder models" in text
    assert "1 encoders that" in text
    assert "| llamaClass | `llama` | flat | all |  |" in text
    assert (
        "| optClass | `opt` | flat | ragged, chunked, cached, preempted, handed over, migrated | "
        "TP 2, unlike TP: no plan |"
    ) in text
    assert "| reformerClass | `reformer` | it has \\| no pages |" in text
    assert "| llama4Class | `llama4` | it needs ears |" in text
    assert "| mptClass | `mpt` | cached | - | ragged differs: prompt 0 |" in text
    assert text.endswith(f"{KEPT}\n\nBy hand.\n")
    assert "Old" not in text


def test_what_is_no_longer_equal_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    known = {"a": row("a", variants=EQUAL), "b": row("b", variants={"tp2": Result("refused", "no plan")})}
    assert not report_losses(known, {"b": row("b", variants={"tp2": Result("differs", "x")})}, list(VARIANTS))
    assert report_losses(known, {"a": row("a", refused="no")}, ["ragged", "tp2"])
    assert capsys.readouterr().err == "a is no longer equal: ragged, tp2\n"


def test_variants_that_were_not_asked_for_stay_in_the_document() -> None:
    before = row("a", path="flat", variants=EQUAL)
    merged = merge(before, row("a", path="flat", variants={"tp2": Result("differs", "x")}))
    assert merged.variants == EQUAL | {"tp2": Result("differs", "x")}
    assert list(merged.variants) == list(VARIANTS)


@pytest.mark.parametrize("model_type", ["gemma2", "gpt_oss", "qwen3_next", "gemma4_text"])
def test_a_tiny_configuration_has_all_kinds_of_layers_of_its_default(model_type: str) -> None:
    tiny, stored = tiny_configs(model_type)
    default = type(tiny)()
    assert set(tiny.layer_types or ()) >= set(default.layer_types or ())
    assert tiny.num_hidden_layers <= 6
    assert stored is tiny


def test_there_are_as_many_types_as_the_library_has() -> None:
    assert len(model_types()) > 150
