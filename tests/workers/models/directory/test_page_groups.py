"""How layers share pages."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from slipstream.workers.models.directory.page_groups import MAX_SHORT_WASTE, PageGroups

windows = st.lists(st.sampled_from([None, None, 128, 1024]), min_size=1, max_size=40).map(tuple)


def test_layers_of_one_kind_are_one_group_in_their_order() -> None:
    for window in (None, 4096):
        groups = PageGroups.of((window,) * 5)
        assert groups == PageGroups.single(5, window)
        assert groups.is_single
        assert groups.places == tuple((0, layer) for layer in range(5))
        assert groups.last_layers() == ((0,), (1,), (2,), (3,), (4,))


def test_layers_that_alternate_are_two_groups_of_one_size() -> None:
    groups = PageGroups.of((128, None) * 12)
    assert groups.windows == (None, 128)
    assert groups.num_slots == 12
    assert groups.places[:4] == ((1, 0), (0, 0), (1, 1), (0, 1))
    assert groups.last_layers()[:4] == ((), (0,), (), (1,))


def test_one_full_layer_in_six_leaves_a_full_group_without_gaps() -> None:
    groups = PageGroups.of(tuple(512 if (layer + 1) % 6 else None for layer in range(26)))  # those of Gemma 3 1B
    assert groups.windows == (None, 512, 512, 512, 512, 512, 512)
    assert groups.num_slots == 4


@given(windows)
def test_every_layer_has_a_place_of_its_own_in_a_group_of_its_window(windows: tuple[int | None, ...]) -> None:
    groups = PageGroups.of(windows)
    assert len(set(groups.places)) == len(groups.places) == len(windows)
    for window, (group, slot) in zip(windows, groups.places, strict=True):
        assert groups.windows[group] == window
        assert 0 <= slot < groups.num_slots
    assert list(groups.windows[: groups.num_full]) == [None] * groups.num_full
    assert {group for group, _ in groups.places} == set(range(len(groups.windows)))
    assert len(groups.windows) * groups.num_slots <= MAX_SHORT_WASTE * len(windows)


@given(windows)
def test_a_slot_is_complete_once_after_its_last_layer(windows: tuple[int | None, ...]) -> None:
    groups = PageGroups.of(windows)
    last_layers = groups.last_layers()
    assert sorted(slot for slots in last_layers for slot in slots) == list(range(groups.num_slots))
    for layer, slots in enumerate(last_layers):
        for slot in slots:
            assert all(other <= layer for other, place in enumerate(groups.places) if place[1] == slot)
