from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream.kv_transfer.api.page_layout import HeadStream, streams_between

DEGREES = st.sampled_from([1, 2, 3, 4, 6, 8, 12, 24])


@given(source_tp=DEGREES, destination_tp=DEGREES)
def test_every_head_is_sent_once_to_the_rank_that_owns_it(source_tp: int, destination_tp: int) -> None:
    num_heads = 24
    pairs = []
    for stream in streams_between(source_tp, destination_tp, num_heads):
        for source, destination in zip(stream.source_heads, stream.destination_heads, strict=True):
            assert 0 <= source < num_heads // source_tp
            assert 0 <= destination < num_heads // destination_tp
            pairs.append(
                (
                    stream.source_rank * (num_heads // source_tp) + source,
                    stream.destination_rank * (num_heads // destination_tp) + destination,
                )
            )
    assert sorted(pairs) == [(head, head) for head in range(num_heads)]


@given(source_tp=DEGREES, destination_tp=DEGREES)
def test_the_reverse_direction_mirrors_the_streams(source_tp: int, destination_tp: int) -> None:
    forward = streams_between(source_tp, destination_tp, 24)
    backward = {
        HeadStream(s.destination_rank, s.source_rank, s.destination_first_head, s.source_first_head, s.num_heads)
        for s in streams_between(destination_tp, source_tp, 24)
    }
    assert set(forward) == backward


def test_equal_degrees_send_rank_to_rank() -> None:
    assert streams_between(2, 2, 8) == (HeadStream(0, 0, 0, 0, 4), HeadStream(1, 1, 0, 0, 4))


def test_two_ranks_fill_the_halves_of_one() -> None:
    assert streams_between(2, 1, 8) == (HeadStream(0, 0, 0, 0, 4), HeadStream(1, 0, 0, 4, 4))


@pytest.mark.parametrize(("source_tp", "destination_tp"), [(3, 1), (1, 3), (0, 1), (16, 1)])
def test_degrees_that_do_not_divide_the_heads_are_refused(source_tp: int, destination_tp: int) -> None:
    with pytest.raises(ValueError, match="does not divide 8 KV heads"):
        streams_between(source_tp, destination_tp, 8)
