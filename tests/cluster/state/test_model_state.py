"""The state of several models in one file, and of one model as drivers before knew it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from slipstream.cluster.config.cluster_config import ClusterConfig
from slipstream.cluster.config.model_entry import ModelEntry, ServedModelConfig
from slipstream.cluster.config.served_config import as_plain, from_plain
from slipstream.cluster.fleet.fleet_port import MemberState
from slipstream.cluster.state import state_file
from slipstream.cluster.state.cluster_state import ClusterState, MemberStatus
from slipstream.cluster.state.cluster_status import describe
from slipstream.cluster.state.model_state import ModelState, phase_of


def state_of_two() -> ClusterState:
    members = [
        MemberStatus("router", "router", "ready"),
        MemberStatus("decode-0", "decode", "ready", model="chat"),
        MemberStatus("decode-1", "decode", "failed", "no memory", model="draft"),
    ]
    first = ClusterState("c", 1, 2.0, "/c.yaml", "chat", members=members, wanted={"prefill": 0, "decode": 1})
    first.further = [ModelState("draft", "/d.yaml", {"prefill": 1, "decode": 0}, "v2", "digest", ["v1", "v2"])]
    return first


def test_several_models_are_read_back(tmp_path: Path) -> None:
    state_file.write(tmp_path / "c.json", state_of_two())
    assert state_file.read(tmp_path / "c.json") == state_of_two()


def test_the_file_of_a_driver_that_knew_one_model_is_read(tmp_path: Path) -> None:
    old = {
        "name": "c", "pid": 1, "started": 2.0, "config": "/c.yaml", "model": "chat", "phase": "ready", "version": "v1",
        "wanted": {"prefill": 1, "decode": 2}, "members": [{"name": "decode-0", "role": "decode", "state": "ready"}],
    }  # fmt: skip
    (tmp_path / "c.json").write_text(json.dumps(old))
    state = state_file.read(tmp_path / "c.json")
    assert state is not None
    assert [(model.model, model.version, model.wanted["decode"]) for model in state.models] == [("chat", "v1", 2)]
    assert state.phase_of(state) == ("serving", "")


def test_a_cluster_of_one_model_is_written_with_no_key_that_drivers_before_refuse() -> None:
    config = ClusterConfig(ServedModelConfig("/m", "chat"))
    plain = as_plain(config)
    assert {"models", "budget", "model_cache", "watch"} & plain.keys() == set()
    assert {"aliases", "watch"} & plain["model"].keys() == set()
    assert "price_per_hour" not in {**plain["prefill"], **plain["decode"]}
    assert {"objective", "swap_s"} & plain["planner"].keys() == set()
    assert from_plain(plain) == config
    several = config.with_models([ModelEntry("/m", "chat"), ModelEntry("/d", "draft", aliases=("d",))])
    assert from_plain(as_plain(several)) == several


def test_the_next_driver_knows_what_was_wanted_of_each_model() -> None:
    state, before = state_of_two(), state_of_two()
    state.further[0].wanted, before.further[0].wanted = {}, {"prefill": 0, "decode": 7}
    before.further[0].is_leaving = True
    state.carry_on(before)
    assert state.of_model("draft").wanted == {"prefill": 0, "decode": 7}
    assert state.of_model("draft").is_leaving


def test_where_the_first_model_leaves_the_next_one_is_the_first() -> None:
    state = state_of_two()
    state.forget_model("chat")
    assert (state.model, state.version, state.wanted, state.further) == ("draft", "v2", {"prefill": 1, "decode": 0}, [])


@pytest.mark.parametrize(
    ("states", "is_leaving", "phase"),
    [
        (["ready", "failed"], False, "serving"),
        (["loading", "dead"], False, "loading"),
        (["pending"], False, "loading"),
        (["failed", "dead"], False, "failed"),
        ([], False, "cold"),
        (["ready"], True, "leaving"),
    ],
)
def test_how_a_model_is_follows_from_its_decode_workers(
    states: list[MemberState], is_leaving: bool, phase: str
) -> None:
    members = [MemberStatus(f"decode-{n}", "decode", state, "why") for n, state in enumerate(states)]
    found, reason = phase_of([*members, MemberStatus("prefill-0", "prefill", "ready")], is_leaving)
    assert found == phase
    assert reason == ("decode-0: why" if phase == "failed" else reason)


def test_status_groups_by_model() -> None:
    queue = {"num_running": 3, "num_waiting": 5, "short": {"num_arrivals": 0, "num_refused": 0, "ttft_s": {"count": 0}}}
    queue |= {"long": {"span_s": 0.0}}
    queue["short"]["span_s"] = 1.0  # type: ignore[index]
    lines = list(describe(state_of_two(), None, None, {"chat": queue}))
    assert lines[0] == "c: starting, 2 models at (not listening yet)"
    assert lines[1] == "  chat: serving; 1 decode ready; 3 running, 5 waiting"
    assert lines[2] == "  draft: failed (decode-1: no memory); 1 decode failed; version v2"
    assert lines[3].split()[:4] == ["NAME", "ROLE", "MODEL", "STATE"]
    assert lines[6].split()[:3] == ["decode-1", "decode", "draft"]
