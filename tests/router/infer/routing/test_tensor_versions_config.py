"""The split between the versions of a tensor model, and what a roll-back returns to."""

from __future__ import annotations

import re

import pytest

from slipstream.router.config.tensor_versions_config import TensorMirrorConfig, TensorVersionsConfig

NONE = TensorVersionsConfig()
TO_2 = TensorMirrorConfig("2", 5)


def test_a_canary_is_rolled_back_to_the_version_that_had_all() -> None:
    canary = TensorVersionsConfig({"1": 1.0}).with_split({"1": 90, "2": 10})
    assert (canary.before, canary.with_split({"1": 50, "2": 50}).before) == ("1", "1")
    back = canary.with_split({"1": 10, "2": 90}).rolled_back()
    assert (back.split, back.before) == ({"1": 1.0}, "")


def test_what_is_promoted_can_be_rolled_back_once() -> None:
    promoted = TensorVersionsConfig({"1": 1.0}).with_split({"1": 1, "2": 1}).with_split({"2": 1})
    assert (promoted.only, promoted.before) == ("2", "1")
    with pytest.raises(ValueError, match="no earlier version"):
        promoted.rolled_back().rolled_back()


def test_without_an_earlier_split_the_largest_share_is_what_served_before() -> None:
    assert NONE.with_split({"1": 90, "2": 10}).before == "1"
    assert NONE.with_split({"10": 5, "9": 5}).before == "9"
    assert NONE.with_split({"2": 1}).before == ""


def test_all_back_to_the_old_version_ends_the_canary() -> None:
    assert NONE.with_split({"1": 90, "2": 10}).with_split({"1": 1, "2": 0}).before == ""


def test_a_mirrored_version_that_gets_a_share_is_mirrored_to_no_more() -> None:
    mirrored = TensorVersionsConfig({"1": 1.0}).with_mirror(TO_2)
    assert mirrored.with_split({"1": 1, "3": 1}).mirror == TO_2
    assert mirrored.with_split({"1": 9, "2": 1}).mirror is None


def test_a_roll_back_ends_a_mirror_and_leaves_the_split() -> None:
    back = TensorVersionsConfig({"1": 1.0}).with_mirror(TO_2).rolled_back()
    assert (back.split, back.mirror) == ({"1": 1.0}, None)


@pytest.mark.parametrize(
    ("split", "mirror", "before", "error"),
    [
        ({"one": 1.0}, None, "", "split must name versions by their numbers, got 'one'"),
        ({"01": 1.0}, None, "", "split must name versions by their numbers, got '01'"),
        ({"1": -1.0}, None, "", "split must give '1' a number of at least 0, got -1.0"),
        ({"1": 0.0}, None, "", "split must give a version a share over 0, got {'1': 0.0}"),
        ({"1": 1.0, "2": 1.0}, TO_2, "", "mirror.version must have no share in split, got 2"),
        (None, None, "v1", "before must name versions by their numbers, got 'v1'"),
    ],
)
def test_mistakes_are_named(
    split: dict[str, float] | None, mirror: TensorMirrorConfig | None, before: str, error: str
) -> None:
    with pytest.raises(ValueError, match=re.escape(error)):
        TensorVersionsConfig(split, mirror, before)


def test_a_mirror_copies_a_share() -> None:
    with pytest.raises(ValueError, match=r"mirror\.percent must be over 0 and at most 100, got 0"):
        TensorMirrorConfig("2", 0)
