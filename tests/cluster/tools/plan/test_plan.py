"""What is tried, how the winner is found, what is said of it, and the file that comes of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from click import Command
from click.testing import CliRunner

from slipstream.cluster.config.loading.config_file import load_config
from slipstream.cluster.tools.plan.advice import as_json, report_of, verdict
from slipstream.cluster.tools.plan.candidate import DeploymentCandidate, splits, spread, variations
from slipstream.cluster.tools.plan.plan_command import plan_command
from slipstream.cluster.tools.plan.search import Search
from slipstream.cluster.tools.plan.trial import NUM_BLOCKS, CandidateTrial, PlanGoal, difference, estimate, simulate
from slipstream.cluster.tools.sim.sim_command import sim_command
from slipstream.cluster.tools.sim.sim_config import Split
from slipstream.cluster.tools.sim.sim_run import find_profile
from slipstream.router.config.router_config import SloConfig

MODEL_DIR = Path(__file__).resolve().parents[4] / "models" / "slipstream-demo"
H200 = find_profile("h200-llama-8b")
TP4 = replace(H200, name="tp4", gpus=4)
OFFERED = 10.0


def trial(candidate: DeploymentCandidate, goodput: float, wave: float = 0.1) -> CandidateTrial:
    good = tuple(goodput + wave * (-1) ** block for block in range(NUM_BLOCKS))
    return CandidateTrial(candidate, good, OFFERED, min(goodput / OFFERED, 1.0), 1, 2, 3, 4, 0, 0.5)


def searched(
    goodput_of: Callable[[DeploymentCandidate], float], profiles: tuple[object, ...] = (H200,), **kwargs: object
) -> Search:
    asked: set[tuple[DeploymentCandidate, int]] = set()

    def simulated(candidate: DeploymentCandidate, seed: int) -> CandidateTrial:
        assert (candidate, seed) not in asked, "asked twice"
        asked.add((candidate, seed))
        return trial(candidate, goodput_of(candidate))

    return Search(simulated, profiles, ("slo", "kv"), 3)  # type: ignore[arg-type]


def test_splits_use_all_devices_and_begin_with_colocated() -> None:
    names = [one.name for one in splits([H200], 4)]
    assert names == ["4 colocated", "1P3D", "2P2D", "3P1D"]
    assert [one.name for one in splits([H200], 1)] == ["1 colocated"]
    both = list(splits([H200, TP4], 8))
    assert {one.num_devices for one in both} == {8}
    assert {(one.prefill.name, one.decode.name) for one in both if not one.is_colocated} == {
        ("h200-llama-8b", "h200-llama-8b"), ("h200-llama-8b", "tp4"), ("tp4", "h200-llama-8b"), ("tp4", "tp4")
    }  # fmt: skip
    assert all(one.split.num_decode >= 1 for one in both)
    assert list(splits([TP4], 3)) == []


def test_of_many_splits_a_few_that_lie_evenly() -> None:
    assert spread(3) == [1, 2, 3]
    assert spread(0) == []
    many = spread(1000)
    assert (many[0], many[-1], len(many)) == (1, 1000, 8)


def test_variations_differ_in_one_thing_and_the_profile_of_a_candidate_has_its_chunk() -> None:
    best = DeploymentCandidate(Split(1, 2), H200, H200)
    varied = list(variations(best, ("slo", "kv")))
    assert {one.name for one in varied} == {"1P2D, chunk 2048", "1P2D, chunk 32768", "1P2D, kv", "2P1D"}
    small = next(one for one in varied if one.chunk_tokens == 2048)
    assert small.profile().prefill.max_step_tokens == 2048
    assert small.profile().decode == H200.decode
    back = [one for one in variations(small, ()) if one.chunk_tokens is None]
    assert back[0].chunk == best.chunk


def test_the_best_of_each_kind_is_found_through_its_variations() -> None:
    def goodput_of(one: DeploymentCandidate) -> float:
        if one.is_colocated:
            return 5.0 + (one.chunk < 1000)
        return 8.0 - abs(one.split.num_prefill - 3) + (one.policy == "kv")

    found = searched(goodput_of).at(8, 0.5)
    assert found.colocated.candidate.chunk == 512
    assert found.apart is not None
    assert (found.apart.candidate.split, found.apart.candidate.policy) == (Split(3, 5), "kv")
    assert found.best is found.apart
    assert found.gain_rps is not None
    assert found.gain_rps.low == pytest.approx(3.0)
    assert found.is_enough
    assert verdict(found).startswith("Yes, disaggregate: 3 prefill workers and 5 decode workers, policy kv serve")


def test_colocated_wins_where_it_is_better_and_where_nobody_can_tell() -> None:
    worse = searched(lambda one: 9.0 if one.is_colocated else 7.0).at(4, 0.5)
    assert worse.best is worse.colocated
    assert verdict(worse).startswith("No, do not disaggregate: 4 colocated workers")
    equal = searched(lambda one: 9.0).at(4, 0.5)
    assert equal.best is equal.colocated
    assert verdict(equal).startswith("It makes no difference")
    single = searched(lambda one: 9.0).at(1, 0.5)
    assert single.apart is None
    assert "1 colocated worker" in verdict(single)


def test_by_cost_the_cheapest_of_those_that_keep_the_target_is_the_best() -> None:
    priced = replace(H200, price_per_hour=2.0)
    cheap = replace(priced, name="cheap", price_per_hour=0.5)

    def simulated(candidate: DeploymentCandidate, seed: int) -> CandidateTrial:
        goodput = 9.0 if candidate.is_colocated else 8.5
        if cheap in (candidate.prefill, candidate.decode):
            goodput = 8.0 if candidate.prefill is cheap and candidate.decode is priced else 2.0
        return replace(trial(candidate, goodput), good_tokens_per_s=100.0 * goodput)

    found = Search(simulated, (priced, cheap), ("slo",), 1, by_cost=0.75).at(4, 0.75)
    best = found.best.candidate
    assert (best.prefill.name, best.decode.name) == ("cheap", priced.name)
    assert best.price_per_hour == 0.5 * best.split.num_prefill + 2.0 * best.split.num_decode
    assert found.best.cost_per_million == pytest.approx(best.price_per_hour / 3600 / 800 * 1e6)
    assert verdict(found).startswith("Cheapest: ")
    report = report_of(PlanGoal("chat", SloConfig(), 100), found, None, [])
    assert "cost per million" in report.text(200)


@pytest.mark.parametrize("needed", [1, 2, 5, 8, 13, 40])
def test_the_fewest_devices_that_are_enough(needed: int) -> None:
    search = searched(lambda one: OFFERED * min(one.num_workers / needed, 1.0) - (not one.is_colocated))
    found = search.fewest(0.99, 40)
    assert (found.num_devices, found.is_enough) == (needed, True)


def test_too_few_devices_are_said() -> None:
    found = searched(lambda one: 1.0).fewest(0.9, 6)
    assert (found.num_devices, found.is_enough) == (6, False)
    report = report_of(PlanGoal("chat", SloConfig(), 100), found, 0.9, [])
    assert "take more workers" in report.text()
    json.dumps(as_json(PlanGoal("chat", SloConfig(), 100), found, 0.9), allow_nan=False)


def test_intervals_hold_the_mean_and_a_paired_difference_is_narrow() -> None:
    one = estimate([1.0, 2.0, 3.0, 4.0] * 5)
    assert one.low < one.mean == 2.5 < one.high
    candidate = DeploymentCandidate(Split(0, 1), H200, H200)
    wavy, wavier = trial(candidate, 5.0, wave=3.0), trial(candidate, 6.0, wave=3.0)
    gain = difference([wavier], [wavy])
    assert (gain.low, gain.high) == pytest.approx((1.0, 1.0))


def test_a_trial_is_the_simulator_and_the_same_every_time() -> None:
    question = PlanGoal("isl=500,osl=20,rate=20", SloConfig(2000, 200), 60)
    candidate = DeploymentCandidate(Split(1, 1), H200, H200)
    first = simulate(question, candidate)
    assert first == simulate(question, candidate)
    assert first.attainment == 1.0
    assert first.goodput_rps == pytest.approx(first.offered_rps)
    assert first.num_failed == 0
    assert simulate(question, candidate, speed=2.0).offered_rps == pytest.approx(2 * first.offered_rps)


def test_the_command_answers_and_writes_a_deployment_that_can_be_served(tmp_path: Path) -> None:
    files = {name: tmp_path / f"plan.{name}" for name in ("json", "html")}
    deployment = tmp_path / "my.yaml"
    options = ["--workload", "isl=1000,osl=20,rate=20", "--requests", "40", "--devices", "2", "--seeds", "2"]
    options += ["--policy", "slo", "--model", str(MODEL_DIR), "--write", str(deployment)]
    options += [word for name, path in files.items() for word in (f"--{name}", str(path))]
    result = CliRunner().invoke(plan_command, options)
    assert result.exit_code == 0, result.output
    answer = json.loads(files["json"].read_text())
    assert result.output.split("\n\n")[1].split()[0] in ("Yes,", "No,", "It")
    config = load_config(deployment)
    recommended = answer["recommended"]
    assert (config.prefill.replicas, config.decode.replicas) == (recommended["num_prefill"], recommended["num_decode"])
    assert config.router.dispatch.policy == recommended["policy"]
    assert "</html>" in files["html"].read_text()


def test_a_deployment_keeps_what_the_user_had(tmp_path: Path) -> None:
    mine, new = tmp_path / "mine.yaml", tmp_path / "new.yaml"
    mine.write_text(
        f"model: {{path: {MODEL_DIR}}}\nname: mine\nrouter: {{http: {{port: 1234}}}}\nprefill: {{num_cpus: 0.5}}\n"
    )
    result = CliRunner().invoke(
        plan_command,
        ["--workload", "isl=200,osl=5,rate=5", "-n", "20", "--devices", "2", "--seeds", "1", "--policy", "slo",
         "--config", str(mine), "--write", str(new)],
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    config = load_config(new)
    assert (config.name, config.router.http.port, config.prefill.num_cpus) == ("mine", 1234, 0.5)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--profile", "nothing"], "profile: 'nothing'"),
        (["--workload", "nothing"], "'nothing' is neither"),
        (["--write", "x.yaml"], "--write needs --config"),
        (["--profile", "h200x4-llama-70b", "--devices", "3"], "needs 4 devices"),
        (["--devices", "100000"], "100000 is not in the range 1<=x<=10000"),
        (["--target", "nan"], "--target must be 0 to 1, got nan"),
    ],
)
def test_what_cannot_be_planned_is_said(options: list[str], said: str) -> None:
    result = CliRunner().invoke(plan_command, options)
    assert result.exit_code == 2
    assert said in result.output


@pytest.mark.parametrize(
    ("command", "options"), [(plan_command, ["--devices", "2", "--seeds", "1"]), (sim_command, [])]
)
def test_prompts_that_no_worker_takes_are_told_of(tmp_path: Path, command: Command, options: list[str]) -> None:
    trace = tmp_path / "long.jsonl"
    rows = [{"timestamp": 100 * at, "input_length": 140_000 if at % 4 else 100, "output_length": 5} for at in range(20)]
    trace.write_text("\n".join(map(json.dumps, rows)))
    result = CliRunner().invoke(command, ["--workload", str(trace), "-n", "20", *options])
    assert result.exit_code == 0, result.output
    said = "15 of 20 requests have a longer prompt than the 131,072 tokens that h200-llama-8b takes, and were refused."
    assert said in " ".join(result.output.split())


def test_requests_that_all_come_at_once_are_counted_over_the_time_that_they_take(tmp_path: Path) -> None:
    trace = tmp_path / "once.jsonl"
    trace.write_text('{"timestamp": 7, "input_length": 600, "output_length": 20}\n')
    found = simulate(PlanGoal(str(trace), SloConfig(2000, 200), 20), DeploymentCandidate(Split(1, 1), H200, H200))
    assert found.attainment == 1.0
    assert 1.0 < found.goodput_rps < 1000.0
    assert found.goodput_rps == pytest.approx(found.offered_rps)
