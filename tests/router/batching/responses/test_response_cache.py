"""The response cache: what is one entry, and what makes room."""

from __future__ import annotations

import dataclasses

import pytest

from slipstream.router.batching.responses.response_cache import ENTRY_BYTES, ResponseCache, cache_key, uses_cache
from slipstream.router.tensors.infer_request import InferRequest, InferResponse, RequestedOutput
from slipstream.router.tensors.model_spec import SequenceBatching
from slipstream.router.tensors.tensor import Tensor
from tests.support.router.batching.made_requests import spec_of

SPEC = spec_of()
OUTPUT_BYTES = 100


def request(data: bytes = b"\0\0\0\0", shape: tuple[int, ...] = (1,), **fields: object) -> InferRequest:
    return dataclasses.replace(
        InferRequest("m", inputs=[Tensor("X", "FP32", shape, data)]),
        **fields,  # type: ignore[arg-type]
    )


def response(data: bytes = bytes(OUTPUT_BYTES)) -> InferResponse:
    return InferResponse("m", "1", "first", [Tensor("Y", "UINT8", (len(data),), data)], {"p": 1})


def filled(num_entries: int, max_entries: int) -> tuple[ResponseCache, list[bytes]]:
    cache = ResponseCache(max_entries * (ENTRY_BYTES + OUTPUT_BYTES))
    keys = [cache_key(SPEC, request(bytes([number, 0, 0, 0]))) for number in range(num_entries)]
    for key in keys:
        assert cache.insert(key, SPEC, response())
    return cache, keys


def test_a_cached_response_is_one_to_the_request_that_asks() -> None:
    cache, (key,) = filled(1, 1)
    entry = cache.lookup(key)
    assert entry is not None
    found = entry.response_to(request(id="second"), "1")
    assert (found.id, found.outputs, found.parameters) == ("second", response().outputs, {"p": 1})


def test_the_bytes_are_copied() -> None:
    cache = ResponseCache(1 << 20)
    data = bytearray(b"abc")
    cache.insert(b"k", SPEC, InferResponse("m", "1", "", [Tensor("Y", "UINT8", (3,), data)]))
    data[:] = b"xyz"
    entry = cache.lookup(b"k")
    assert entry is not None
    assert entry.outputs[0].data == b"abc"


@pytest.mark.parametrize(
    "other",
    [
        request(b"\1\0\0\0"),
        request(shape=(1, 1)),
        request(inputs=[Tensor("X", "INT32", (1,), bytes(4))]),
        request(inputs=[Tensor("Z", "FP32", (1,), bytes(4))]),
        request(requested=(RequestedOutput("Y"),)),
        request(parameters={"k": 1}),
        request(tenant="other"),
    ],
)
def test_a_request_that_may_be_answered_otherwise_has_another_key(other: InferRequest) -> None:
    assert cache_key(SPEC, request()) != cache_key(SPEC, other)


def test_the_id_and_the_order_of_inputs_do_not_matter() -> None:
    one, two = Tensor("A", "FP32", (1,), bytes(4)), Tensor("B", "FP32", (1,), b"\1\0\0\0")
    key = cache_key(SPEC, request(inputs=[one, two], id="1", priority=1, timeout_us=5))
    assert key == cache_key(SPEC, request(inputs=[two, one], id="2"))


def test_what_was_not_used_for_longest_makes_room() -> None:
    cache, keys = filled(2, 2)
    assert cache.lookup(keys[0]) is not None
    assert cache.insert(b"new", SPEC, response())
    assert [cache.lookup(key) is not None for key in (*keys, b"new")] == [True, False, True]
    assert (cache.num_evictions, cache.num_bytes) == (1, cache.max_bytes)


def test_a_response_is_inserted_once_and_not_if_it_is_too_large() -> None:
    cache, (key,) = filled(1, 1)
    assert not cache.insert(key, SPEC, response())
    assert not cache.insert(b"large", SPEC, response(bytes(OUTPUT_BYTES + 1)))
    assert len(cache) == 1


def test_an_unloaded_version_takes_its_entries_with_it() -> None:
    cache, keys = filled(3, 4)
    cache.insert(b"other", dataclasses.replace(SPEC, version="2"), response())
    cache.forget("m", "1")
    assert [cache.lookup(key) for key in keys] == [None] * 3
    assert cache.lookup(b"other") is not None
    cache.forget("m", "2")
    assert (len(cache), cache.num_bytes) == (0, 0)


def test_decoupled_models_and_sequences_are_not_cached() -> None:
    cached = dataclasses.replace(SPEC, uses_response_cache=True)
    assert uses_cache(cached)
    assert not uses_cache(SPEC)
    assert not uses_cache(dataclasses.replace(cached, is_decoupled=True))
    assert not uses_cache(dataclasses.replace(cached, sequence_batching=SequenceBatching()))
