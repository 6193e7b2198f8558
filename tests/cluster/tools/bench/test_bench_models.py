"""`slipstream bench` with several models."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from slipstream.cluster.tools.bench.bench_command import bench_command
from tests.support.cluster.scripted_server import ScriptedServer, scripted

CARDS = [{"id": "a"}, {"id": "b"}, {"id": "c"}]


def bench(server: ScriptedServer, *words: object) -> Result:
    server.cards = [dict(card) for card in CARDS]
    options = ["--isl", 4, "--osl", 2, "--warm-up", 0, *words]
    result = CliRunner(env={"COLUMNS": "160"}).invoke(bench_command, [server.url, *map(str, options)])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.output
    return result


def asked(server: ScriptedServer, count: int) -> list[str]:
    """The models of the last requests."""
    return [body["model"] for body in server.bodies[-count:]]


def test_models_take_turns_and_are_reported_each(tmp_path: Path) -> None:
    file, records = tmp_path / "out.json", tmp_path / "records"
    with scripted() as server:
        result = bench(
            server, "--model", "a", "--model", "c", "--request-count", 6, "--json", file, "--records", records
        )
        assert result.exit_code == 0, result.output
        assert asked(server, 6) == ["a", "c"] * 3
    assert "Models (times in ms)" in result.output
    outcome: dict[str, Any] = json.loads(file.read_text())
    counts = {one["model"]: one["metrics"]["request_count"]["avg"] for one in outcome["by_model"]}
    assert counts == {"a": 3, "c": 3}
    assert Counter(json.loads(line)["model"] for line in records.read_text().splitlines()) == {"a": 3, "c": 3}


def test_models_chosen_at_random_are_the_same_for_the_same_seed() -> None:
    options = ("--model", "a", "--model", "b", "--model-selection", "random", "--request-count", 12)
    with scripted() as server:
        runs = []
        for seed in (1, 1, 2):
            assert bench(server, *options, "--seed", seed).exit_code == 0
            runs.append(asked(server, 12))
    assert runs[0] == runs[1] != runs[2]
    assert set(runs[0]) == {"a", "b"}


def test_the_requests_of_a_trace_are_for_the_models_that_it_names(tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    lines = [{"timestamp": n, "input_length": 4, "output_length": 2, "model": "ab"[n % 2]} for n in range(4)]
    trace.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    with scripted() as server:
        result = bench(server, "--workload", trace)
        assert result.exit_code == 0, result.output
        assert sorted(asked(server, 4)) == ["a", "a", "b", "b"]
    assert "Models (times in ms)" in result.output


def test_one_model_has_no_table_of_models() -> None:
    with scripted() as server:
        assert "Models (times in ms)" not in bench(server, "--model", "b", "--request-count", 2).output


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--model", "a", "--model", "nope"), "does not serve 'nope' but a, b, c"),
        (("--model", "a", "--model", "b", "--profile", "p.json"), "a profile is of one model"),
    ],
)
def test_a_model_that_is_not_served_and_a_profile_of_two_are_refused(words: tuple[str, ...], said: str) -> None:
    with scripted() as server:
        result = bench(server, *words)
    assert result.exit_code
    assert said in result.output
