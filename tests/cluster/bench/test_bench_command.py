"""`slipstream bench` against a server that is scripted: files, tables, errors, sweeps, Ctrl-C."""

from __future__ import annotations

import asyncio
import csv
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from slipstream.cluster.bench.command import bench_command
from slipstream.cluster.bench.load import Extent, Level
from slipstream.cluster.bench.progress import progress_line
from slipstream.cluster.bench.run_level import LevelRun
from tests.cluster.bench.scripted_server import normal, scripted, whole

MODEL_DIR = Path(__file__).resolve().parents[3] / "models" / "slipstream-demo"


def bench(*words: str | Path) -> Result:
    told = CliRunner(env={"COLUMNS": "120"}).invoke(bench_command, [str(word) for word in words])
    assert told.exception is None or isinstance(told.exception, SystemExit), told.output
    return told


def test_a_run_writes_its_tables_and_files(tmp_path: Path) -> None:
    files = {name: tmp_path / f"out.{name}" for name in ("json", "csv", "html", "records")}
    with scripted() as server:
        options = [word for name, path in files.items() for word in (f"--{name}", path)]
        told = bench(
            server.url, "--goodput", "ttft:5000", "itl:5000", "--isl", 20, "--osl", 3, "--concurrency", "1,2",
            "--request-count", 6, "--warm-up", 1, "--tokenizer", MODEL_DIR, "--key", "k", *options,
        )  # fmt: skip
    assert told.exit_code == 0, told.output
    assert "time_to_first_token (ms)" in told.output
    assert "Sweep" in told.output
    outcome = json.loads(files["json"].read_text())
    assert [level["concurrency"] for level in outcome["levels"]] == [1, 2]
    metrics = outcome["levels"][1]["metrics"]
    assert metrics["output_sequence_length"]["avg"] == 3
    assert metrics["goodput"]["avg"] == metrics["request_throughput"]["avg"]
    assert "k" not in outcome["settings"].values()
    rows = list(csv.DictReader(files["csv"].read_text().splitlines()))
    assert {"time_to_first_token", "request_throughput", "goodput"} <= {row["metric"] for row in rows}
    assert len(files["records"].read_text().splitlines()) == 12
    assert "</html>" in files["html"].read_text()
    assert len(server.bodies) == 14
    assert server.num_connections <= 2 + 1 + 2 + 2  # kept alive
    body = server.bodies[-1]
    assert (body["max_tokens"], body["ignore_eos"], body["stream_options"]) == (3, True, {"include_usage": True})
    assert len(body["messages"][0]["content"].split()) == 20
    assert all("authorization: Bearer k" in head for head in server.heads)


def test_a_file_that_cannot_be_written_loses_no_report(tmp_path: Path) -> None:
    path = tmp_path / "gone" / "out.json"
    with scripted() as server:
        told = bench(server.url, "--osl", 2, "--request-count", 3, "--json", path)
    assert told.exit_code == 1
    assert "Metrics, concurrency 1" in told.output
    assert f"{path}: No such file or directory" in told.output


def test_comparison_with_an_earlier_run(tmp_path: Path) -> None:
    path = tmp_path / "old.json"
    with scripted() as server:
        assert bench(server.url, "--osl", 2, "--request-count", 3, "--json", path).exit_code == 0
        told = bench(server.url, "--osl", 2, "--request-count", 3, "--compare", path)
        assert "request_throughput avg" in told.output
        path.write_text("{}")
        told = bench(server.url, "--compare", path)
    assert told.exit_code == 1
    assert "is no result of" in told.output


def test_turns_of_a_conversation_carry_what_was_answered() -> None:
    with scripted() as server:
        assert bench(server.url, "--turns", 3, "--osl", 2, "--request-count", 3, "--warm-up", 0).exit_code == 0
    last = server.bodies[-1]["messages"]
    assert [message["role"] for message in last] == ["user", "assistant", "user", "assistant", "user"]
    assert last[1]["content"] == "t0 t1 "
    assert last[0] == server.bodies[-2]["messages"][0]


def test_a_trace_is_replayed_at_its_own_times(tmp_path: Path) -> None:
    trace = tmp_path / "t.jsonl"
    trace.write_text(
        "".join(json.dumps({"timestamp": 100 * n, "input_length": 5, "output_length": 2}) + "\n" for n in range(4))
    )
    records = tmp_path / "r.jsonl"
    with scripted() as server:
        told = bench(server.url, "--workload", trace, "--speed", 10, "--records", records, "--warm-up", 0)
    assert told.exit_code == 0, told.output
    due = [json.loads(line)["due_s"] for line in records.read_text().splitlines()]
    assert sorted(due) == pytest.approx([0, 0.01, 0.02, 0.03])


def test_a_given_rate_and_whole_answers(tmp_path: Path) -> None:
    with scripted() as server:
        told = bench(
            server.url, "--request-rate", 200, "--arrivals", "constant", "--request-count", 10, "--no-stream",
            "--endpoint", "completions", "--osl", 2,
        )  # fmt: skip
    assert told.exit_code == 0, told.output
    assert "time_to_first_token" not in told.output
    assert "request_latency" in told.output
    assert "stream" not in server.bodies[-1]
    assert isinstance(server.bodies[-1]["prompt"], str)


async def every_second_fails(writer: asyncio.StreamWriter, body: dict[str, Any], number: int) -> None:
    if number % 2:
        whole(writer, 503, {"error": {"message": "no room"}})
    else:
        await normal(writer, body, number)


def test_errors_are_counted_by_kind_and_shown() -> None:
    with scripted(every_second_fails) as server:
        told = bench(server.url, "--osl", 2, "--request-count", 6, "--warm-up", 0, "--tokenizer", MODEL_DIR)
    assert told.exit_code == 0
    assert "HTTP 503" in told.output
    assert "no room" in told.output


async def all_fail(writer: asyncio.StreamWriter, body: dict[str, Any], number: int) -> None:
    whole(writer, 400, {"error": {"message": "ignore_eos: unknown"}})


def test_a_server_that_refuses_everything_is_said_in_one_sentence() -> None:
    with scripted(all_fail) as server:
        told = bench(server.url, "--tokenizer", MODEL_DIR)
    assert told.exit_code == 1
    assert told.output.strip().count("\n") == 0
    assert "ignore_eos: unknown" in told.output


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["http://127.0.0.1:1"], "cannot be reached"),
        (["--name", "nobody"], "no cluster named nobody"),
        ([], "give one URL"),
        (["a:1", "b:1"], "give one URL"),
        (["a:1", "--goodput", "x:1"], "--goodput"),
        (["a:1", "--extra", "[]"], "--extra"),
        (["a:1", "--header", "x"], "--header"),
        (["a:1", "--isl", "nan"], "--isl: a finite number was expected"),
        (["a:1", "--osl-stddev", "inf"], "--osl-stddev: a finite number was expected"),
    ],
)
def test_what_cannot_be_done_is_said(words: list[str], said: str) -> None:
    told = bench(*words)
    assert told.exit_code in (1, 2)
    assert said in told.output


def test_bad_levels_are_said() -> None:
    with scripted() as server:
        for words in (
            ["--concurrency", "0"],
            ["--concurrency", "x"],
            ["--request-rate", "-1"],
            ["--workload", "nothing"],
        ):
            told = bench(server.url, "--tokenizer", MODEL_DIR, *words)
            assert told.exit_code in (1, 2), words
            assert words[0].removeprefix("--").replace("-", " ") in told.output.replace("-", " "), told.output


def test_a_model_that_is_not_served_is_said() -> None:
    with scripted(cards=[{"id": "a"}, {"id": "b"}]) as server:
        told = bench(server.url, "--model", "c")
    assert "does not serve 'c' but a, b" in told.output


def test_ctrl_c_gives_the_report_so_far() -> None:
    async def third_hangs(writer: asyncio.StreamWriter, body: dict[str, Any], number: int) -> None:
        if number == 2:
            os.kill(os.getpid(), signal.SIGINT)
            await asyncio.Event().wait()
        await normal(writer, body, number)

    with scripted(third_hangs) as server:
        told = bench(server.url, "--osl", 2, "--warm-up", 0, "--request-count", 9, "--tokenizer", MODEL_DIR)
    assert told.exit_code == 130, told.output
    assert "Interrupted" in told.output
    assert "unfinished_count" in told.output
    assert len(server.bodies) == 3


def test_ctrl_c_in_the_warm_up_ends_it_without_a_report() -> None:
    async def hangs(writer: asyncio.StreamWriter, body: dict[str, Any], number: int) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        await asyncio.Event().wait()

    with scripted(hangs) as server:
        told = bench(server.url, "--warm-up", 1, "--tokenizer", MODEL_DIR)
    assert told.exit_code == 130, told.output
    assert "before anything was measured" in told.output


def test_a_duration_ends_a_level_and_lets_answers_end() -> None:
    with scripted() as server:
        told = bench(server.url, "--osl", 2, "--duration", 0.3, "--concurrency", 2, "--tokenizer", MODEL_DIR)
    assert told.exit_code == 0, told.output
    assert "unfinished_count" not in told.output
    assert len(server.bodies) > 6


def test_the_progress_line_tells_how_far_it_is() -> None:
    run = LevelRun(Level(8), num_running=8)
    line = progress_line(run, Extent(100), 2.0)
    assert "concurrency 8" in line
    assert "0/100 requests, 8 running" in line
