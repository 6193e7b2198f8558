"""`slipstream plan --repository`: the search, the file that it writes, and a run."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pytest
from click.testing import CliRunner

from slipstream.cluster.tools.bench.tensors.server_counts import ServerCounts
from slipstream.cluster.tools.plan.plan_command import plan_command
from slipstream.cluster.tools.plan.tensors.config_edit import edited
from slipstream.cluster.tools.plan.tensors.hill_climb import climb
from slipstream.cluster.tools.plan.tensors.setting_trial import SettingTrial, TrialPoint
from slipstream.cluster.tools.plan.tensors.tensor_settings import SettingSpace, TensorSettings
from slipstream.router.model_repository.config.config_text import parse_text
from tests.support.cluster.program_models import write_model

CONFIG = """\
# The model of the shop.
name: "shop"
backend: "python"  # as it came
max_batch_size: 16
input [ { name: "count: 5 }" data_type: TYPE_FP32 dims: [ 4 ] } ]
output { name: "OUT" data_type: TYPE_FP32 dims: [ 4 ] }
dynamic_batching {
  # found by hand
  preferred_batch_size: [ 4, 8 ]
  max_queue_delay_microseconds: 100
  preserve_ordering: true  # clients rely on it
}
instance_group [ { count: 1 kind: KIND_CPU } ]
parameters { key: "a" value: { string_value: "max_batch_size: 3 # no comment" } }
"""
BATCHED = TensorSettings(1, 16, delay_us=0)


@dataclass
class Rate:
    requests_s: float

    def is_better_than(self, other: Rate) -> bool:
        return self.requests_s > other.requests_s


def found(start: TensorSettings, space: SettingSpace, rate_of: object) -> tuple[TensorSettings, list[TensorSettings]]:
    """The best settings of a search in which `rate_of` is measured, and all that it tried."""
    search, tried = climb(start, space), []
    at = next(search)
    while True:
        tried.append(at)
        try:
            at = search.send(Rate(rate_of(at)))
        except StopIteration:
            return max(tried, key=rate_of), tried


def test_the_search_finds_the_peak_of_each_setting_and_measures_none_twice() -> None:
    def rate(at: TensorSettings) -> float:
        delay = abs((at.delay_us or 0) - 500) / 1000
        return 100 - (at.instances - 3) ** 2 - delay - abs(at.max_batch_size - 8) - (at.delay_us is None) * 50

    best, tried = found(TensorSettings(1, 16), SettingSpace(8, 16, 10_000), rate)
    assert best == TensorSettings(3, 8, delay_us=500)
    assert len(set(tried)) == len(tried) < 20


def test_a_model_without_batches_is_searched_for_instances_only() -> None:
    best, tried = found(TensorSettings(1), SettingSpace(4), lambda at: at.instances)
    assert best == TensorSettings(4)
    assert tried == [TensorSettings(count) for count in (1, 2, 3, 4)]


def test_bounds_are_kept() -> None:
    _, tried = found(BATCHED, SettingSpace(2, 16, 1000), lambda at: at.instances + (at.delay_us or 0))
    assert max(at.instances for at in tried) == 2
    assert max(at.delay_us for at in tried) == 1000
    assert max(at.max_batch_size for at in tried) == 16


def trial(requests_s: float, p99_ms: float, num_errors: int = 0) -> SettingTrial:
    return SettingTrial(BATCHED, 20.0, [TrialPoint(1, requests_s, 1.0, p99_ms, num_errors, ServerCounts())])


def test_a_setting_within_the_limit_is_better_than_a_faster_one_over_it() -> None:
    assert trial(100, 19).is_better_than(trial(900, 21))
    assert trial(100, 19).is_better_than(trial(900, 1, num_errors=1))
    assert trial(110, 19).is_better_than(trial(100, 1))
    assert not trial(102, 1).is_better_than(trial(100, 19))
    assert trial(1, 30).is_better_than(trial(100, 50))


def test_a_file_keeps_its_comments_and_other_fields() -> None:
    text = edited(CONFIG, TensorSettings(3, 8, 500, (4,)))
    expected = CONFIG.replace("max_batch_size: 16", "max_batch_size: 8").replace("[ 4, 8 ]", "[ 4 ]")
    expected = expected.replace("count: 1", "count: 3").replace("microseconds: 100", "microseconds: 500")
    assert text == expected


def test_settings_that_go_leave_the_rest_of_their_message() -> None:
    text = edited(CONFIG, TensorSettings(1, 16, 0))
    gone = ("  preferred_batch_size: [ 4, 8 ]\n", "  max_queue_delay_microseconds: 100\n")
    assert text == CONFIG.replace(gone[0], "").replace(gone[1], "")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "max_batch_size: 16",
        "max_batch_size: 16\ndynamic_batching { }\ninstance_group { kind: KIND_CPU }\ninstance_group { count: 2 }\n",
        "max_batch_size: 16 dynamic_batching: < preferred_batch_size: 2 preferred_batch_size: 4 >; instance_group {}",
        "max_batch_size: 16\ndynamic_batching {\n  # nothing\n}\ninstance_group [\n  {\n    kind: KIND_CPU\n  }\n]\n",
    ],
)
def test_all_ways_to_write_a_file_come_to_the_same_settings(text: str) -> None:
    settings = TensorSettings(4, 8, 200, (2,))
    wanted = parse_text(text)
    settings.set_in(wanted)
    assert parse_text(edited(text, settings)) == wanted


SLEEPY = """
class TritonPythonModel:
    def execute(self, requests):
        time.sleep(0.005)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", value_of(one, "IN"))]) for one in requests]
"""
SLEEPY_CONFIG = """\
max_batch_size: 8  # as exported
input { name: "IN" data_type: TYPE_FP32 dims: [ 4 ] }
output { name: "OUT" data_type: TYPE_FP32 dims: [ 4 ] }
instance_group { count: 1 kind: KIND_CPU }
"""


def test_a_model_that_waits_gets_more_instances_or_batches(tmp_path: Path) -> None:
    write_model(tmp_path, "sleepy", SLEEPY_CONFIG, SLEEPY)
    report = tmp_path / "report.json"
    words = ["--repository", str(tmp_path), "--model", "sleepy", "--latency-ms", "500", "--seconds", "6", "--write"]
    result = CliRunner().invoke(plan_command, [*words, "--max-instances", "3", "--json", str(report)])
    assert result.exit_code == 0, result.output
    outcome = json.loads(report.read_text())
    assert outcome["best"]["requests_s"] > outcome["present"]["requests_s"]
    text = (tmp_path / "sleepy" / "config.pbtxt").read_text()
    assert text.startswith('backend: "python"\nmax_batch_size: ')
    assert "# as exported" in text
    written = parse_text(text)
    assert written.instance_group[0].count == outcome["best"]["instances"]
    assert written.instance_group[0].count > 1 or written.HasField("dynamic_batching")


@pytest.mark.parametrize(
    ("config", "words", "reason"),
    [
        (SLEEPY_CONFIG, ["--model", "sleepy"], "--repository needs --model NAME and --latency-ms MS"),
        (SLEEPY_CONFIG, ["--model", "other", "--latency-ms", "5"], "has no model 'other'"),
        ("nonsense: 1", ["--model", "sleepy", "--latency-ms", "5"], "nonsense"),
        (
            'ensemble_scheduling { step { model_name: "a" model_version: -1 } }',
            ["--model", "sleepy", "--latency-ms", "5"],
            "is an ensemble, which has no instances: plan its models (a)",
        ),
    ],
)
def test_what_cannot_be_measured_is_said(tmp_path: Path, config: str, words: list[str], reason: str) -> None:
    write_model(tmp_path, "sleepy", config, SLEEPY)
    result = CliRunner().invoke(plan_command, ["--repository", str(tmp_path), *words])
    assert result.exit_code == 2
    assert reason in " ".join(result.output.split())
