"""Which workers may join a router."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from slipstream.kv_transfer.api.ticket import PeerId, TransferAddress
from slipstream.router.protocol.messages import OLDEST_PROTOCOL_VERSION, PROTOCOL_VERSION, Build, Hello
from slipstream.router.registry.hello_check import why_refused
from tests.support.router.greetings import make_hello

ADDRESS = TransferAddress("127.0.0.1", 1)


def why(hello: Hello, *connected: Hello) -> str | None:
    return why_refused(hello, "secret", ["m"], connected)


def greeting(name: str = "d", epoch: int = 1, **fields: Any) -> Hello:
    return make_hello(PeerId(name, epoch), token="secret", **fields)


def test_a_worker_of_this_model_with_the_token_may_join() -> None:
    assert why(greeting()) is None
    assert why(greeting(tp=2, addresses=(ADDRESS, ADDRESS)), greeting("other")) is None


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"token": "secre"}, "wrong token"),
        ({"token": ""}, "wrong token"),
        ({"token": "sécret"}, "wrong token"),  # which cannot be compared as text
        (
            {"version": OLDEST_PROTOCOL_VERSION - 1},
            f"worker d speaks version {OLDEST_PROTOCOL_VERSION - 1} of the prot",
        ),
        ({"model": "n"}, "model 'n', this router serves 'm'"),
        ({"worker": PeerId("", 1)}, "worker.name is empty"),
        ({"tp": 0, "addresses": ()}, "tp must be at least 1, got 0"),
        ({"page_tokens": 0}, "page_tokens must be at least 1, got 0"),
        ({"num_pages": -1}, "num_pages must be at least 1, got -1"),
        ({"max_slots": 0}, "max_slots must be at least 1, got 0"),
        ({"max_queued_tokens": 0}, "max_queued_tokens must be at least 1, got 0"),
        ({"max_model_len": 0}, "max_model_len must be at least 1, got 0"),
        ({"block_tokens": -1}, "block_tokens must not be negative, got -1"),
        ({"tp": 2}, "1 transfer addresses for tp 2"),
    ],
)
def test_a_greeting_that_makes_no_sense_is_refused_with_the_field_and_its_value(
    fields: dict[str, Any], reason: str
) -> None:
    refused = why(replace(greeting(), **fields))
    assert refused is not None
    assert refused.startswith(reason)


@pytest.mark.parametrize(
    ("oldest", "newest", "joins"),
    [
        (0, PROTOCOL_VERSION, True),
        (0, OLDEST_PROTOCOL_VERSION, True),
        (0, OLDEST_PROTOCOL_VERSION - 1, False),
        (PROTOCOL_VERSION, PROTOCOL_VERSION + 1, True),
        (PROTOCOL_VERSION + 1, PROTOCOL_VERSION + 2, False),
        (0, PROTOCOL_VERSION + 1, False),
        (OLDEST_PROTOCOL_VERSION - 2, OLDEST_PROTOCOL_VERSION - 1, False),
    ],
)
def test_two_sides_whose_ranges_of_the_protocol_overlap_understand_each_other(
    oldest: int, newest: int, joins: bool
) -> None:
    assert (why(greeting(version=newest, oldest_version=oldest)) is None) == joins


def test_a_worker_outside_of_the_range_is_refused_with_both_ranges() -> None:
    ours = f"this router {OLDEST_PROTOCOL_VERSION} to {PROTOCOL_VERSION}"
    newest = PROTOCOL_VERSION + 2
    worker = greeting("decode-0", version=newest, oldest_version=newest - 1, build=Build("9.1"))
    assert why(worker) == (
        f"worker decode-0 (Slipstream 9.1) speaks version {newest - 1} to {newest} of the protocol, {ours}"
    )
    assert why(greeting("decode-0", version=1)) == f"worker decode-0 speaks version 1 of the protocol, {ours}"


def test_a_stranger_is_told_nothing_but_that_its_token_is_wrong() -> None:
    assert why(greeting(model="n", version=0, tp=0)) != "wrong token"
    assert why(replace(greeting(model="n", version=0, tp=0), token="x")) == "wrong token"


def test_all_workers_have_pages_of_one_size() -> None:
    assert why(greeting("new", page_tokens=32), greeting("a"), greeting("b")) == "page_tokens 32, but a has 16"
    assert why(greeting("new", block_tokens=8), greeting("a")) == "block_tokens 8, but a has 16"
    assert why(greeting("a", epoch=2, page_tokens=32), greeting("a")) is None  # which it takes the place of


def test_blocks_are_compared_only_among_workers_that_report_them() -> None:
    small, without = {"block_tokens": 8}, {"block_tokens": 8, "prefix_caching": False}
    assert why(greeting("new", **small), greeting("a")) == "block_tokens 8, but a has 16"
    assert why(greeting("new", **without), greeting("a")) is None
    assert why(greeting("new"), greeting("a", **without)) is None
    assert why(greeting("new", page_tokens=32, **without), greeting("a")) == "page_tokens 32, but a has 16"


@pytest.mark.parametrize(
    ("epoch", "pid", "joins"),
    [(2, 7, True), (1, 1, True), (1, 7, False), (0, 1, False)],
    ids=["a later epoch", "the same process again", "another process of the same epoch", "an earlier epoch"],
)
def test_of_one_name_only_a_later_worker_or_the_same_one_joins(epoch: int, pid: int, joins: bool) -> None:
    refused = why(greeting("a", epoch=epoch, pid=pid), greeting("a", epoch=1, pid=1))
    assert refused == (None if joins else f"a is connected with epoch 1, not older than {epoch}")
