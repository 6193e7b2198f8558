from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from slipstream.cluster.tools.sim.hardware.hardware_profile import WorkerProfile
from slipstream.cluster.tools.sim.run_result import RunResult
from slipstream.cluster.tools.sim.sim_command import sim_command
from slipstream.cluster.tools.sim.sim_config import FaultConfig, SimConfig, SimConfigError, Split, load_sim_config
from slipstream.cluster.tools.sim.sim_fleet import SimFleet
from slipstream.cluster.tools.sim.sim_report import as_json, report_of
from slipstream.cluster.tools.sim.sim_run import SimRun, find_profile
from slipstream.cluster.tools.sim.sim_world import World, WorldConfig
from slipstream.cluster.tools.workload.workload import Workload, open_workload
from slipstream.router.config.router_config import DispatchConfig, MigrationConfig

ROOT = Path(__file__).resolve().parents[4]
SHARED = """{"timestamp": 0, "input_length": 2100, "output_length": 50, "hash_ids": [0, 1, 2, 3, 4]}
{"timestamp": 900, "input_length": 3000, "output_length": 80, "hash_ids": [0, 1, 2, 3, 9, 10]}
"""


def run(config: SimConfig, split: Split, source: str = "mixed,rate=12", number: int = 400) -> RunResult:
    workload = open_workload(source, number, config.speed, config.seed)
    return SimRun(config, find_profile(config.profile), workload, number / 12.0).run("slo", split)


def report_text(config: SimConfig, result: RunResult) -> str:
    return json.dumps(as_json(config, find_profile(config.profile), [result]))


def test_the_same_seed_gives_the_same_and_another_does_not() -> None:
    config = SimConfig(faults=FaultConfig(kills=3, slow=2, cuts=2), seed=4)
    first, again = (report_text(config, run(config, Split(2, 2))) for _ in range(2))
    assert first == again
    other = replace(config, seed=5)
    assert report_text(other, run(other, Split(2, 2))) != first


def test_nothing_is_lost_when_workers_die_slow_down_and_are_cut_off() -> None:
    config = SimConfig(faults=FaultConfig(kills=6, slow=4, cuts=4, cut_s=3.0))
    profile = replace(find_profile("h200-llama-8b"), start_s=4.0)
    workload = open_workload("mixed,rate=60", 1500)
    result = SimRun(config, profile, workload, 25.0).run("slo", Split(3, 3))
    assert result.outcomes.ends == {"stop": 1500}
    assert {fault.kind for fault in result.faults} == {"kill", "slow", "cut"}
    assert result.retries["worker_lost"] > 0


def test_a_worker_that_shares_its_cores_stays_slow_for_as_long_as_its_last_fault_lasts() -> None:
    """It begins and stops to compute many times meanwhile, and its second fault begins before the first is over."""
    config = SimConfig(faults=FaultConfig(slow=2, slow_factor=4.0, slow_s=40.0), seed=1)
    profile = replace(find_profile(config.profile), shared_cores=True)
    result = SimRun(config, profile, open_workload("isl=200,osl=20,rate=1,spread=0", 120), 50.0).run("slo", Split(0, 1))
    first, second = sorted(fault.at_s for fault in result.faults)
    assert second < first + 40.0 < second + 40.0 - 5.0, "the seed has them overlap, and one outlast the other"
    by_arrival = sorted(zip(result.outcomes.arrived_s, result.outcomes.itl_s, strict=True))
    usual = min(itl_s for _, itl_s in by_arrival)
    slow = [itl_s for at_s, itl_s in by_arrival if first < at_s < second + 39.0]
    after = [itl_s for at_s, itl_s in by_arrival if at_s > second + 40.0]
    assert min(slow) > 3.0 * usual
    assert after
    assert max(after) < 2.0 * usual


def test_answers_stay_where_they_are_without_rebalancing() -> None:
    moving, staying = (
        run(SimConfig(migration=MigrationConfig(rebalance=rebalance)), Split(0, 2), "isl=300,osl=3000,rate=6,spread=1")
        for rebalance in (True, False)
    )
    assert moving.num_moves > 0
    assert staying.num_moves == 0


def test_shared_prefixes_are_found_in_the_caches(tmp_path: Path) -> None:
    path = tmp_path / "shared.jsonl"
    path.write_text(SHARED)
    result = run(SimConfig(), Split(1, 1), str(path), 200)
    assert result.cached_share == pytest.approx(0.5 * 4 * 512 / 2550, rel=0.02)
    none = run(SimConfig(prefix_caching=False), Split(1, 1), str(path), 200)
    assert none.cached_share == 0.0


def test_a_link_that_is_too_slow_shows_between_the_first_tokens() -> None:
    fast = find_profile("h200-llama-8b")
    slow = replace(fast, link_bytes_per_s=2e9)
    workload = open_workload("isl=4000,osl=20,rate=6,spread=0.2", 300)
    config = SimConfig()
    results = [SimRun(config, p, workload, 50.0).run("least_loaded", Split(2, 1)) for p in (fast, slow)]
    quick, late = (result.outcomes.percentiles_ms(result.outcomes.itl_s)[50] for result in results)
    assert late > 2 * quick
    assert results[0].transfer_bytes == results[1].transfer_bytes > 300 * 3000 * fast.kv_bytes_per_token / 2


def test_answers_that_outgrow_the_pages_are_computed_again_and_end() -> None:
    profile = replace(find_profile("h200-llama-8b"), num_pages=300)
    workload = open_workload("isl=200,osl=900,rate=40,spread=0", 120)
    result = SimRun(SimConfig(queue_timeout_s=600.0), profile, workload, 3.0).run("slo", Split(0, 1))
    assert result.outcomes.ends == {"stop": 120}
    assert result.num_preemptions > 0


def test_a_queue_that_nobody_serves_times_out() -> None:
    config = SimConfig(queue_timeout_s=2.0)
    profile = find_profile("h200-llama-8b")
    small = replace(profile, decode=replace(profile.decode, max_slots=1))
    result = SimRun(config, small, open_workload("isl=100,osl=500,rate=50", 200), 4.0).run("slo", Split(0, 1))
    assert set(result.outcomes.ends) <= {"stop", "queue_timeout", "deadline_unreachable"}
    assert result.outcomes.ends["queue_timeout"] + result.outcomes.ends["deadline_unreachable"] > 0
    assert result.num_failed == 200 - result.outcomes.ends["stop"]


def world_of(profile: WorkerProfile) -> World:
    return World(WorldConfig(DispatchConfig(), profile, 16, False))


def now(coroutine: object) -> None:
    with pytest.raises(StopIteration):
        coroutine.send(None)  # type: ignore[attr-defined]


def test_a_fleet_takes_its_time_to_grow_switch_and_shrink() -> None:
    profile = replace(find_profile("h200-llama-8b"), start_s=5.0, role_switch_s=1.0)
    world = world_of(profile)
    fleet = SimFleet(world)
    fleet.start("decode", 2)
    now(fleet.add("prefill"))
    now(fleet.switch_role("w1", "prefill"))
    assert (fleet.state().num_prefill, fleet.state().num_decode) == (2, 1)
    assert fleet.state().is_changing
    roles = []

    def until(time_s: float) -> dict[str, str]:
        while (world.clock.next_s or 1e9) <= time_s:
            world.clock.step()
        return {worker.name: worker.hello.role for worker in world.workers.values()}

    roles.append(until(0.5))
    roles.append(until(1.5))
    roles.append(until(5.5))
    assert roles == [
        {"w0": "decode"},
        {"w0": "decode", "w1": "prefill"},
        {"w0": "decode", "w1": "prefill", "w2": "prefill"},
    ]
    now(fleet.remove("w2"))
    assert until(6.0) == {"w0": "decode", "w1": "prefill"}
    assert not fleet.state().is_changing


def test_a_report_has_all_runs_and_can_be_shown() -> None:
    config = SimConfig()
    profile = find_profile(config.profile)
    workload = open_workload("chat", 100)
    results = [SimRun(config, profile, workload, 25.0).run("slo", split) for split in (Split(1, 1), Split(0, 2))]
    report = report_of(config, profile, workload, results)
    assert "1P1D" in report.text()
    assert "Disaggregated (1P1D slo) against colocated (2 colocated slo)" in report.summary
    assert "<svg" in report.html()


@pytest.mark.parametrize(
    ("text", "split"), [("1:3", Split(1, 3)), ("2P6D", Split(2, 6)), ("8", Split(0, 8)), ("0:4", Split(0, 4))]
)
def test_splits_can_be_written_in_several_ways(text: str, split: Split) -> None:
    assert Split.parse(text) == split


@pytest.mark.parametrize(
    ("yaml", "said"),
    [
        ("\ncolour: red", ":2: colour: there is no such setting"),
        ("speed: fast", ":1: speed: Input should be a valid number, got 'fast'"),
        ("speed: 0", "speed must be over 0"),
        ("splits: [1:3]", ":1: splits.0: a list of texts such as"),
        ("splits: '1:3'", ":1: splits: a list of texts such as"),
        ("splits: ['4:']", "a split is P:D"),
        ("splits: ['4:0']", "at least 1 decode worker, got '4:0'"),
        ("splits: ['3:0']", "at least 1 decode worker"),
        ("policies: [best]", "policies.0: Input should be 'slo'"),
        ("faults: {kills: -1}", ":1: faults: kills must be 0 or more, got -1"),
        ("faults:\n  at_s: -5", ":2: faults.at_s: there is no such setting"),
        ("speed: 1\nspeed: 2", ":2: speed: given twice"),
        ("slo: {2026-11-22: 1}", "a key that is no text"),
        ("max_queued_requests: 0", "max_queued_requests must be at least 1, got 0"),
        ("slo: &a {b: *a}", "an alias of what it stands in"),
        ("[]", "must be a mapping"),
        ("a: [", "not valid YAML"),
    ],
)
def test_a_bad_setting_is_named_with_file_and_key(tmp_path: Path, yaml: str, said: str) -> None:
    path = tmp_path / "sim.yaml"
    path.write_text(yaml)
    with pytest.raises(SimConfigError) as caught:
        load_sim_config(path, {})
    assert str(caught.value).startswith(str(path))
    assert said in str(caught.value)


def test_an_empty_file_means_the_defaults(tmp_path: Path) -> None:
    path = tmp_path / "sim.yaml"
    for text in ("# nothing yet\n", "slo:\nfaults:\n"):
        path.write_text(text)
        assert load_sim_config(path, {"requests": 7}) == SimConfig(requests=7)


def test_the_command_writes_what_it_found(tmp_path: Path) -> None:
    page, values = tmp_path / "page.html", tmp_path / "values.json"
    config = tmp_path / "sim.yaml"
    config.write_text("workload: chat\nrequests: 60\nsplits: ['1:1', '2']\n")
    arguments = [str(config), "-n", "50", "--policy", "kv", "--json", str(values), "--html", str(page)]
    done = CliRunner().invoke(sim_command, arguments)
    assert done.exit_code == 0, done.output
    assert "2 colocated" in done.output
    runs = json.loads(values.read_text())["runs"]
    assert [(one["num_prefill"], one["num_requests"], one["policy"]) for one in runs] == [(1, 50, "kv"), (0, 50, "kv")]
    assert page.read_text().startswith("<!doctype html>")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--workload", "nowhere.csv"], "neither a file nor one of chat"),
        (["--profile", "abacus"], "neither a file nor one of"),
        (["--profile", "x" * 5000], "neither a file nor one of"),
        (["--split", "many"], "a split is P:D"),
        (["--split", "9999:2"], "a split has at most 10000 workers, got '9999:2'"),
        (["--speed", "0"], "speed must be over 0"),
    ],
)
def test_a_command_that_cannot_be_run_says_why(arguments: list[str], said: str) -> None:
    done = CliRunner().invoke(sim_command, arguments)
    assert done.exit_code == 2
    assert said in done.output


@pytest.mark.parametrize("path", sorted((ROOT / "configs" / "sim").glob("*.yaml")), ids=lambda path: path.stem)
def test_shipped_settings_can_be_run(path: Path) -> None:
    config = load_sim_config(path, {"requests": 20})
    assert find_profile(config.profile).name == config.profile
    assert len(open_workload(config.workload, config.requests)) == 20


def test_a_workload_is_not_used_up_by_a_run() -> None:
    workload = Workload("x", 50, trace=tuple(open_workload("chat", 50)))
    config = SimConfig()
    runs = [SimRun(config, find_profile(config.profile), workload, 10.0).run("slo", Split(1, 1)) for _ in range(2)]
    assert len(runs[0].outcomes) == len(runs[1].outcomes) == 50
