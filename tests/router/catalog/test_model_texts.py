"""Which text a request gets where the versions of a model have different ones."""

from __future__ import annotations

from collections import Counter
from typing import cast

from slipstream.router.catalog.model_texts import ModelTexts
from slipstream.router.catalog.served_model import ServedModel
from slipstream.router.text.tokenizer import Tokenizer


def model() -> ServedModel:
    return ServedModel("m", cast(Tokenizer, object()))


OWN, OTHER = model(), model()


def test_texts_are_chosen_by_the_shares_of_their_versions() -> None:
    texts = ModelTexts(OWN, {"3": OTHER})
    seen = Counter(texts.choose({"1": 60.0, "2": 30.0, "3": 10.0}, "").versions for _ in range(100))
    assert seen == {("1", "2"): 90, ("3",): 10}
    assert texts.choose({"1": 1.0}, "").model is OWN
    assert texts.choose({"3": 1.0}, "").model is OTHER


def test_a_session_changes_its_text_at_most_once_while_the_share_of_the_new_one_grows() -> None:
    texts = ModelTexts(OWN, {"2": OTHER})
    num_of_new = []
    chosen = {number: [] for number in range(200)}  # type: dict[int, list[str]]
    for percent in (0, 5, 25, 50, 100):
        shares = {version: share for version, share in (("1", 100.0 - percent), ("2", float(percent))) if share}
        for number, versions in chosen.items():
            versions.append(texts.choose(shares, f"s{number}").versions[0])
        num_of_new.append(sum(versions[-1] == "2" for versions in chosen.values()))
    assert all(versions == sorted(versions) for versions in chosen.values())
    assert num_of_new[0] == 0
    assert 2 <= num_of_new[1] <= 25
    assert 75 <= num_of_new[3] <= 125
    assert num_of_new[4] == 200


def test_a_version_that_is_named_has_its_text() -> None:
    texts = ModelTexts(OWN, {"2": OTHER})
    assert texts.of_version("2", {"1": 1.0}) == (OTHER, ("2",))
    assert texts.of_version("1", {"1": 1.0, "2": 1.0}) == (OWN, ("1",))


def test_without_any_worker_requests_wait_for_the_versions_that_had_the_model_s_own_text() -> None:
    texts = ModelTexts(OWN, {"2": OTHER})
    texts.choose({"1": 1.0}, "")
    assert texts.choose({}, "") == (OWN, ("1",))
