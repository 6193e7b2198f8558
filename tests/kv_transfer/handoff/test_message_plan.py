from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream.kv_transfer.api.page_layout import HeadStream
from slipstream.kv_transfer.api.ticket import PeerId
from slipstream.kv_transfer.handoff.message_plan import MessageTag, StreamPlan, TicketError
from tests.support.kv_transfer.tickets import make_ticket

STREAM = HeadStream(0, 0, 0, 0, 2)


@given(
    first_page=st.integers(0, 20),
    num_pages=st.integers(0, 40),
    slab_pages=st.integers(1, 9),
    num_layers=st.integers(1, 4),
)
def test_messages_cover_every_page_of_every_layer_once(
    first_page: int, num_pages: int, slab_pages: int, num_layers: int
) -> None:
    ticket = make_ticket(first_page=first_page, num_pages=num_pages, slab_pages=slab_pages, num_layers=num_layers)
    plan = StreamPlan(ticket, STREAM)
    covered = []
    for index in range(plan.num_messages):
        message = plan.message(index)
        assert message.index == index
        assert 1 <= message.num_pages <= slab_pages
        assert message.num_bytes == message.num_pages * 2 * ticket.head_bytes
        # A slab ends with a slab of the sequence, or with the sequence.
        end = first_page + message.first + message.num_pages
        assert end % slab_pages == 0 or end == first_page + num_pages
        covered += [(message.layer, message.first + page) for page in range(message.num_pages)]
    assert sorted(covered) == [(layer, page) for layer in range(num_layers) for page in range(num_pages)]
    assert plan.payload_bytes == sum(plan.message(i).num_bytes for i in range(plan.num_messages))


def test_a_chunk_of_slab_pages_from_the_start_completes_whole_slabs() -> None:
    plan = StreamPlan(make_ticket(first_page=3, num_pages=7, slab_pages=4), STREAM)
    assert [plan.slab_end(slab) for slab in range(plan.num_slabs)] == [4, 8, 10]


@given(
    first_page=st.integers(0, 20), num_pages=st.integers(0, 20), slab_pages=st.integers(1, 7), ready=st.integers(0, 50)
)
def test_slabs_within_are_those_that_end_there(first_page: int, num_pages: int, slab_pages: int, ready: int) -> None:
    plan = StreamPlan(make_ticket(first_page=first_page, num_pages=num_pages, slab_pages=slab_pages), STREAM)
    ends = [plan.slab_end(slab) for slab in range(plan.num_slabs)]
    assert plan.slabs_within(ready) == sum(end <= ready for end in ends)


@given(transfer_id=st.integers(0, 2**32 - 1), source_rank=st.integers(0, 255), index=st.integers(0, 2**24 - 1))
def test_a_tag_says_which_message_it_is(transfer_id: int, source_rank: int, index: int) -> None:
    tag = MessageTag(transfer_id, source_rank, index)
    assert 0 <= tag.pack() < 2**64
    assert MessageTag.unpack(tag.pack()) == tag


@pytest.mark.parametrize(
    ("fields", "stream", "complaint"),
    [
        ({"transfer_id": 2**32}, STREAM, "transfer id 4294967296 does not fit"),
        ({"transfer_id": -1}, STREAM, "transfer id -1 does not fit"),
        ({"num_pages": 2**24, "slab_pages": 1}, STREAM, "50331648 messages"),
        ({}, HeadStream(256, 0, 0, 0, 2), "source rank 256 does not fit"),
        ({"slab_pages": 0}, STREAM, "slab_pages of a ticket must be at least 1, got 0"),
        ({"first_page": -1}, STREAM, "first_page of a ticket must be at least 0, got -1"),
        ({"num_layers": 0}, STREAM, "num_layers of a ticket must be at least 1, got 0"),
    ],
)
def test_tickets_that_cannot_be_numbered_are_refused(
    fields: dict[str, int], stream: HeadStream, complaint: str
) -> None:
    with pytest.raises(TicketError, match=complaint):
        StreamPlan(make_ticket(**fields), stream)  # type: ignore[arg-type]


def test_there_is_no_message_past_the_end() -> None:
    plan = StreamPlan(make_ticket(), STREAM)
    with pytest.raises(TicketError, match="message 9 of a stream with 9"):
        plan.message(plan.num_messages)


def test_the_seed_of_the_checksum_tells_apart_places_transfers_ranks_and_epochs() -> None:
    plan = StreamPlan(make_ticket(7), STREAM)
    seeds = {
        plan.seed(0),
        plan.seed(1),
        StreamPlan(make_ticket(8), STREAM).seed(0),
        StreamPlan(make_ticket(7), HeadStream(1, 0, 0, 0, 2)).seed(0),
        StreamPlan(make_ticket(7, destination=PeerId("decode-0", 2)), STREAM).seed(0),
    }
    assert len(seeds) == 5
    assert all(0 <= seed < 2**64 for seed in seeds)
