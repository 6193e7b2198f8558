"""On which host an instance goes, and which one moves."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from slipstream.router.instances.placement.host_choice import Placed, host_for, instance_to_move

M = ("m", "1")


def on(*hosts: str, device: int | None = None) -> list[Placed]:
    return [Placed(f"m_0_{number}", M, device, host) for number, host in enumerate(hosts)]


def test_without_a_host_there_is_none() -> None:
    assert host_for(M, None, [], []) is None
    assert instance_to_move(on("a", "a"), []) is None


def test_of_equals_the_emptiest_is_taken() -> None:
    others = [Placed("other_0_0", ("other", "1"), None, "a")]
    assert host_for(M, None, others, ["a", "b"]) == "b"


def test_the_last_one_of_the_fullest_host_moves() -> None:
    found = instance_to_move(on("a", "a", "a"), ["a", "b"])
    assert found is not None
    assert found.name == "m_0_2"


def test_one_instance_does_not_move_and_neither_does_one_whose_host_is_away() -> None:
    assert instance_to_move(on("a"), ["a", "b"]) is None
    assert instance_to_move(on("gone", "gone"), ["a", "b"]) is None


def test_each_device_is_spread_by_itself() -> None:
    placed = [*on("a", device=0), Placed("m_0_0_gpu1", M, 1, "a")]
    assert instance_to_move(placed, ["a", "b"]) is None


@given(st.lists(st.sampled_from("abc"), max_size=12))
def test_moves_end_and_leave_it_even(hosts: list[str]) -> None:
    placed = {one.name: one for one in on(*hosts)}
    for _ in range(20):
        found = instance_to_move(placed.values(), "abc")
        if found is None:
            break
        del placed[found.name]
        host = host_for(M, None, placed.values(), "abc")
        assert host is not None
        placed[found.name] = Placed(found.name, M, None, host)
    counts = [sum(one.host == host for one in placed.values()) for host in "abc"]
    assert max(counts) - min(counts) <= 1
