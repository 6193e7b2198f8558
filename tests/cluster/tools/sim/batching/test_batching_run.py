"""The simulation of a tensor model's batcher."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from slipstream.cluster.cli import main
from slipstream.cluster.tools.sim.batching.batching_run import BatchingRun, ExecutionTime, TensorLoad
from slipstream.router.tensors.model_spec import DynamicBatching, QueuePolicy, SequenceBatching
from tests.support.router.batching.made_requests import spec_of

ROOT = Path(__file__).resolve().parents[5]
TIME = ExecutionTime(0.010)


def test_one_client_waits_for_each_execution() -> None:
    outcome = BatchingRun(spec_of(8), TensorLoad(duration_s=1.005), TIME, [1.0]).run()
    assert len(outcome.latencies_s) == 100
    assert outcome.latency_s(0.5) == pytest.approx(0.010)
    assert outcome.rows_a_batch == 1


def test_dynamic_batching_serves_many_clients_in_one_execution() -> None:
    load = TensorLoad(num_clients=8, duration_s=1.005)
    alone = BatchingRun(spec_of(8), load, TIME, [1.0]).run()
    together = BatchingRun(spec_of(8, dynamic_batching=DynamicBatching()), load, TIME, [1.0]).run()
    assert together.requests_s == pytest.approx(8 * alone.requests_s)
    assert together.rows_a_batch == 8


def test_a_delay_makes_larger_batches() -> None:
    load = TensorLoad(rate_s=300, duration_s=5)
    sizes = []
    for delay_us in (0, 20_000):
        spec = spec_of(8, dynamic_batching=DynamicBatching(max_queue_delay_us=delay_us))
        sizes.append(BatchingRun(spec, load, ExecutionTime(0.001), [1.0]).run().rows_a_batch)
    assert sizes[1] > 2 * sizes[0]


def test_what_the_queue_refuses_is_counted() -> None:
    policy = QueuePolicy(max_queue_size=2)
    spec = spec_of(1, dynamic_batching=DynamicBatching(default_queue_policy=policy))
    outcome = BatchingRun(spec, TensorLoad(rate_s=400, duration_s=2), TIME, [1.0]).run()
    assert outcome.requests_s == pytest.approx(100, rel=0.05)
    assert outcome.num_refused > 300


def test_a_session_of_a_model_with_sequences_is_a_sequence() -> None:
    spec = spec_of(4, sequence_batching=SequenceBatching())
    outcome = BatchingRun(spec, TensorLoad(num_clients=4, num_steps=5, duration_s=1.005), TIME, [1.0]).run()
    assert outcome.requests_s == pytest.approx(400, rel=0.05)
    assert outcome.num_refused == 0


def test_unequal_instances_that_pull_are_all_busy_and_no_request_waits_for_the_slow_one() -> None:
    load, speeds = TensorLoad(rate_s=160, duration_s=20), (1.0, 0.5, 0.5)
    pulled = BatchingRun(spec_of(1), load, TIME, speeds).run()
    pushed = BatchingRun(spec_of(1), load, TIME, speeds, is_pushed=True).run()
    assert pulled.requests_s == pytest.approx(160, rel=0.05)
    assert pulled.latency_s(0.99) < 0.3 * pushed.latency_s(0.99)
    fast_s, *slow_s = pushed.busy_s.values()
    assert fast_s < 0.6 * load.duration_s < 0.95 * load.duration_s < min(slow_s)


def test_a_sequence_that_is_pushed_stays_at_its_instance() -> None:
    spec = spec_of(4, sequence_batching=SequenceBatching())
    load = TensorLoad(num_clients=4, num_steps=5, duration_s=1.005)
    outcome = BatchingRun(spec, load, TIME, [1.0, 1.0], is_pushed=True).run()
    assert outcome.requests_s == pytest.approx(400, rel=0.05)
    assert outcome.num_refused == 0


def test_the_command_compares_settings_of_a_model_in_a_repository() -> None:
    command = ["sim-batching", str(ROOT / "configs/repository"), "norm", "--rate", "500", "--batch-ms", "1"]
    result = CliRunner().invoke(main, [*command, "--seconds", "1", "-d", "0", "-d", "5000"])
    assert result.exit_code == 0, result.output
    assert "rows a batch" in result.output
    pushed = CliRunner().invoke(main, [*command, "--seconds", "1", "--speeds", "1,0.25", "--push"])
    assert [line.split()[0] for line in pushed.output.splitlines()[-2:]] == ["pull", "push"]
    unknown = CliRunner().invoke(main, ["sim-batching", str(ROOT / "configs/repository"), "nope", "--batch-ms", "1"])
    assert unknown.exit_code == 1
