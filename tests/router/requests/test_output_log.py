"""Tokens come out once and in order, however they come in."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream.router.protocol.messages import TokenChunk, TokenLogprob, pack_ids
from slipstream.router.requests.output_log import MAX_EARLY_CHUNKS, OutputError, OutputLog


def chunk(index, *token_ids, finish=None, stop=None, logprobs=()):
    return TokenChunk("r", 0, index, token_ids, logprobs, finish, stop)


@pytest.mark.parametrize("token_id", [-1, 2**31, 2**40])
def test_top_logprobs_of_no_token_are_refused(token_id):
    with pytest.raises(OutputError, match="top logprobs"):
        OutputLog(10).add(chunk(0, 7, logprobs=(TokenLogprob(-1.0, ((token_id, -1.0),)),)))


def test_a_repeated_token_is_dropped():
    log = OutputLog(10)
    assert log.add(chunk(0, 7)) == [chunk(0, 7)]
    assert log.add(chunk(0, 7)) == []
    assert log.packed_ids == pack_ids([7])


def test_a_partly_known_chunk_gives_its_new_part_with_its_logprobs():
    log = OutputLog(10)
    log.add(chunk(0, 5, 6))
    late = chunk(1, 6, 7, logprobs=(TokenLogprob(-1.0), TokenLogprob(-2.0)))
    assert log.add(late) == [chunk(2, 7, logprobs=(TokenLogprob(-2.0),))]


def test_an_early_chunk_waits_for_the_gap_before_it():
    log = OutputLog(10)
    assert log.add(chunk(2, 8, finish="stop", stop=8)) == []
    assert log.add(chunk(1, 7)) == []
    assert log.add(chunk(0, 6)) == [chunk(0, 6), chunk(1, 7), chunk(2, 8, finish="stop", stop=8)]


def test_early_chunks_are_forgotten_on_request():
    log = OutputLog(10)
    log.add(chunk(1, 7))
    log.drop_early()
    assert log.add(chunk(0, 6)) == [chunk(0, 6)]


def test_a_finish_may_come_alone_after_its_last_token():
    log = OutputLog(10)
    log.add(chunk(0, 6))
    assert log.add(chunk(1, finish="stop")) == [chunk(1, finish="stop")]
    assert log.add(chunk(0, finish="stop")) == []


def test_tokens_beyond_max_tokens_are_cut_and_finish_with_length():
    log = OutputLog(2)
    assert log.add(chunk(0, 1, 2, 3, finish="stop", stop=3)) == [chunk(0, 1, 2, finish="length")]
    assert log.is_full


@pytest.mark.parametrize("token_id", [2**31, -1])
def test_a_bad_chunk_that_comes_early_is_an_error_at_once_and_takes_no_good_tokens_with_it(token_id):
    log = OutputLog(10)
    with pytest.raises(OutputError, match="int32"):
        log.add(chunk(1, token_id))
    assert log.add(chunk(0, 6)) == [chunk(0, 6)]
    assert log.packed_ids == pack_ids([6])


@pytest.mark.parametrize("token_id", [2**31, -(2**31) - 1, -1])
def test_a_token_that_is_no_int32_is_an_error_and_leaves_nothing_behind(token_id):
    log = OutputLog(10)
    with pytest.raises(OutputError, match="int32"):
        log.add(chunk(0, 1, token_id))
    assert len(log) == 0


def test_a_negative_number_of_cached_tokens_is_an_error():
    with pytest.raises(OutputError, match="-1 tokens of the prompt"):
        OutputLog(10).add(TokenChunk("r", 0, 0, (1,), num_cached_tokens=-1))


def test_logprobs_that_do_not_match_the_tokens_are_an_error():
    with pytest.raises(OutputError, match="1 logprobs came with 2 tokens"):
        OutputLog(10).add(chunk(0, 1, 2, logprobs=(TokenLogprob(-1.0),)))


def test_a_gap_that_never_closes_is_an_error_before_memory_fills():
    log = OutputLog(1000)
    for index in range(1, MAX_EARLY_CHUNKS + 1):
        log.add(chunk(index, index))
    with pytest.raises(OutputError, match="token 0 is missing"):
        log.add(chunk(500, 1))


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 12), st.data())
def test_any_order_with_repeats_and_overlaps_gives_the_sequence_once(length, data):
    tokens = list(range(100, 100 + length))
    spans = [(start, start + 1) for start in range(length)]
    spans += data.draw(st.lists(st.tuples(st.integers(0, length), st.integers(0, length)).map(sorted), max_size=8))
    log, out = OutputLog(length), []
    for start, end in data.draw(st.permutations(spans)):
        for part in log.add(chunk(start, *tokens[start:end])):
            assert part.index == len(out)
            out += part.token_ids
    assert out == tokens
    assert log.packed_ids == pack_ids(tokens)
