"""Which workers may exchange pages, and what is said of those that only compute differently."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from slipstream.router.config.router_config import DispatchConfig
from slipstream.router.dispatch.dispatcher import Dispatcher
from slipstream.router.protocol.generation import GenerateRequest
from slipstream.router.protocol.messages import (
    PROTOCOL_VERSION,
    Build,
    Credits,
    Hello,
    PageLayout,
    Role,
    SamplingParams,
)
from slipstream.router.registry.page_exchange import about_newcomer, drift, mismatch, refused_pairs
from tests.support.router.greetings import make_hello

LAYOUT = PageLayout(2, 4, 64, 4096, "bfloat16", "slipstream kv 5")
BUILD = Build("0.2.0", "3.12.1", "2.13.0", "", "", "avx512", "bfloat16")


def worker(name: str, role: Role = "decode", *, version: str = "", **changes: Any) -> Hello:
    """`changes` are fields of the layout or the build."""
    of_layout = {key: value for key, value in changes.items() if hasattr(LAYOUT, key)}
    of_build = {key: value for key, value in changes.items() if hasattr(BUILD, key)}
    layout, build = dataclasses.replace(LAYOUT, **of_layout), dataclasses.replace(BUILD, **of_build)
    sizes = {"num_pages": 1000, "max_slots": 8, "max_queued_tokens": 10_000}
    return make_hello(name, role, model_version=version, layout=layout, build=build, **sizes)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("num_layers", 3),
        ("num_kv_heads", 8),
        ("head_dim", 128),
        ("head_bytes", 2048),
        ("page_dtype", "int8"),
        ("transfer", "slipstream kv 6"),
    ],
)
def test_workers_of_different_pages_are_kept_apart_with_the_field_and_both_values(field: str, value: object) -> None:
    reason = mismatch(worker("p", "prefill"), worker("d", **{field: value}))
    assert reason.startswith(f"{field} {getattr(LAYOUT, field)} of p, {value} of d")


def test_the_setting_that_decides_is_named() -> None:
    reason = mismatch(worker("p", "prefill"), worker("d", page_dtype="int8", head_bytes=2048))
    assert "page_dtype bfloat16 of p, int8 of d (kv_cache_dtype, dtype)" in reason


def test_what_a_worker_does_not_say_is_not_held_against_it() -> None:
    silent = make_hello("d")
    assert mismatch(worker("p", "prefill"), silent) == ""
    assert drift([worker("p", "prefill"), silent]) == ()


def test_only_pairs_of_one_version_of_the_model_are_reported_and_those_alike_together() -> None:
    odd = {"page_dtype": "int8"}
    workers = [worker("p0", "prefill"), worker("p1", "prefill"), worker("d0"), worker("d1", **odd)]
    [refused] = refused_pairs([*workers, worker("d2", version="2", **odd)])
    assert (refused.prefills, refused.decodes, refused.count) == (("p0", "p1"), ("d1",), 2)
    assert str(refused).startswith("p0, p1 and d1 exchange no pages: page_dtype bfloat16 of p0, int8 of d1")


def test_drift_names_the_field_the_values_and_the_workers() -> None:
    workers = [worker("p0", "prefill"), worker("d0"), worker("d1", torch="2.12.0", instructions="avx2")]
    assert drift(workers, "0.2.0") == (
        "torch is 2.12.0 on d1 and 2.13.0 on d0, p0",
        "instructions is avx2 on d1 and avx512 on d0, p0",
    )
    older = dataclasses.replace(make_hello("d0"), version=PROTOCOL_VERSION - 1)
    assert drift([older], "0.2.0") == (
        f"protocol is {PROTOCOL_VERSION - 1} on d0 and {PROTOCOL_VERSION} on the router",
    )
    assert drift(workers[:2], "0.3.0") == ("slipstream is 0.2.0 on d0, p0 and 0.3.0 on the router",)
    assert drift([workers[0], worker("d2", version="2", torch="2.12.0")], "0.2.0") == ()
    crowd = [worker(f"d{number}", torch="2.12.0") for number in range(6)]
    assert drift([*crowd, workers[0]]) == ("torch is 2.12.0 on d0, d1, d2, d3 and 2 more and 2.13.0 on p0",)


def test_a_newcomer_that_differs_is_remarked_on_once_for_each_kind() -> None:
    connected = [worker("p0", "prefill"), worker("p1", "prefill"), worker("d0")]
    assert list(about_newcomer(worker("d1"), connected)) == []
    problems = list(about_newcomer(worker("d1", torch="2.12.0", driver="535", page_dtype="int8"), connected))
    assert problems == [
        "d1 exchanges no pages with p0, p1: page_dtype int8 of d1, bfloat16 of p0 (kv_cache_dtype, dtype)",
        "d1 may compute otherwise than others: torch 2.12.0 (2.13.0 on p0)",
    ]


def dispatcher(*workers: Hello) -> Dispatcher:
    made = Dispatcher(DispatchConfig(policy="round_robin"))
    for hello in workers:
        made.worker_joined(hello, 0.0)
        made.worker_message(hello.worker, Credits(0, 8, 1000, 10_000), 0.0)
    return made


def decided(cluster: Dispatcher, request_id: str) -> tuple[str, str | None, str]:
    """The decode and the prefill worker, and the reason."""
    prompt = tuple(range(1000))
    cluster.submit(GenerateRequest(request_id, prompt, SamplingParams(16)), 1.0)
    decision = cluster.history.get(request_id).decisions[-1]  # type: ignore[union-attr]
    return decision.decode.name, None if decision.prefill is None else decision.prefill.name, decision.reason


def test_a_pair_that_cannot_exchange_pages_is_never_paired() -> None:
    odd = dispatcher(worker("p", "prefill"), worker("d", page_dtype="int8"))
    assert decided(odd, "one") == ("d", None, "prefill_incompatible")
    why = odd.history.get("one").decisions[-1].why  # type: ignore[union-attr]
    assert "page_dtype bfloat16 of p, int8 of d" in why
    [refused] = odd.snapshot(1.0).refused_pairs
    assert (refused.prefills, refused.decodes) == (("p",), ("d",))
    small = dataclasses.replace(worker("p0", "prefill"), num_pages=1)  # would fit, but has no room for any prompt
    beside = dispatcher(small, worker("p1", "prefill", page_dtype="int8"), worker("d"))
    assert decided(beside, "one") == ("d", None, "prefill_incompatible")
    assert "page_dtype int8 of p1" in beside.history.get("one").decisions[-1].why  # type: ignore[union-attr]
    mixed = dispatcher(worker("p0", "prefill", page_dtype="int8"), worker("p1", "prefill"), worker("d"))
    assert {decided(mixed, f"r{number}")[1] for number in range(6)} == {"p1"}
    mixed.worker_lost(mixed.snapshot(1.0).workers[0].peer, 2.0, "gone")
    assert mixed.snapshot(2.0).refused_pairs == ()
