"""`slipstream bench` against a server that is scripted: files, tables, errors, sweeps, Ctrl-C."""

from __future__ import annotations

import asyncio
import csv
import itertools
import json
import os
import signal
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from slipstream.cluster.tools.bench.bench_command import bench_command
from slipstream.cluster.tools.bench.client.bench_target import Target
from slipstream.cluster.tools.bench.client.conversation import Conversation, Turn
from slipstream.cluster.tools.bench.client.request_body import RequestBody
from slipstream.cluster.tools.bench.client.request_sender import RequestSender
from slipstream.cluster.tools.bench.load.level_run import LevelRun, run_level
from slipstream.cluster.tools.bench.load.load_level import Extent, LoadLevel
from slipstream.cluster.tools.bench.load.progress_line import progress_line
from tests.support.cluster.scripted_server import normal, scripted, whole

MODEL_DIR = Path(__file__).resolve().parents[4] / "models" / "slipstream-demo"


def bench(*words: str | Path) -> Result:
    result = CliRunner(env={"COLUMNS": "120"}).invoke(bench_command, [str(word) for word in words])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.output
    return result


def test_a_run_writes_its_tables_and_files(tmp_path: Path) -> None:
    files = {name: tmp_path / f"out.{name}" for name in ("json", "csv", "html", "records")}
    with scripted() as server:
        options = [word for name, path in files.items() for word in (f"--{name}", path)]
        result = bench(
            server.url, "--goodput", "ttft:5000", "itl:5000", "--isl", 20, "--osl", 3, "--concurrency", "1,2",
            "--request-count", 6, "--warm-up", 1, "--tokenizer", MODEL_DIR, "--key", "k", *options,
        )  # fmt: skip
    assert result.exit_code == 0, result.output
    assert "time_to_first_token (ms)" in result.output
    assert "Sweep" in result.output
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
        result = bench(server.url, "--osl", 2, "--request-count", 3, "--json", path)
    assert result.exit_code == 1
    assert "Metrics, concurrency 1" in result.output
    assert f"{path}: No such file or directory" in result.output


def test_comparison_with_an_earlier_run(tmp_path: Path) -> None:
    path = tmp_path / "old.json"
    with scripted() as server:
        assert bench(server.url, "--osl", 2, "--request-count", 3, "--json", path).exit_code == 0
        result = bench(server.url, "--osl", 2, "--request-count", 3, "--compare", path)
        assert "request_throughput avg" in result.output
        path.write_text("{}")
        result = bench(server.url, "--compare", path)
    assert result.exit_code == 1
    assert "is no result of" in result.output


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
        result = bench(server.url, "--workload", trace, "--speed", 10, "--records", records, "--warm-up", 0)
    assert result.exit_code == 0, result.output
    due = [json.loads(line)["due_s"] for line in records.read_text().splitlines()]
    assert sorted(due) == pytest.approx([0, 0.01, 0.02, 0.03])


def test_a_given_rate_and_whole_answers(tmp_path: Path) -> None:
    with scripted() as server:
        result = bench(
            server.url, "--request-rate", 200, "--arrivals", "constant", "--request-count", 10, "--no-stream",
            "--endpoint", "completions", "--osl", 2,
        )  # fmt: skip
    assert result.exit_code == 0, result.output
    assert "time_to_first_token" not in result.output
    assert "request_latency" in result.output
    assert "stream" not in server.bodies[-1]
    assert isinstance(server.bodies[-1]["prompt"], str)


async def every_second_fails(writer: asyncio.StreamWriter, body: dict[str, Any], number: int) -> None:
    if number % 2:
        whole(writer, 503, {"error": {"message": "no room"}})
    else:
        await normal(writer, body, number)


def test_errors_are_counted_by_kind_and_shown() -> None:
    with scripted(every_second_fails) as server:
        result = bench(server.url, "--osl", 2, "--request-count", 6, "--warm-up", 0, "--tokenizer", MODEL_DIR)
    assert result.exit_code == 0
    assert "HTTP 503" in result.output
    assert "no room" in result.output


async def all_fail(writer: asyncio.StreamWriter, body: dict[str, Any], number: int) -> None:
    whole(writer, 400, {"error": {"message": "ignore_eos: unknown"}})


def test_a_server_that_refuses_everything_is_said_in_one_sentence() -> None:
    with scripted(all_fail) as server:
        result = bench(server.url, "--tokenizer", MODEL_DIR)
    assert result.exit_code == 1
    assert result.output.strip().count("\n") == 0
    assert "ignore_eos: unknown" in result.output


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["http://127.0.0.1:1"], "cannot be reached"),
        (["--name", "missing"], "no cluster named missing"),
        ([], "give one URL"),
        (["a:1", "b:1"], "give one URL"),
        (["a:1", "--goodput", "x:1"], "--goodput"),
        (["a:1", "--extra", "[]"], "--extra"),
        (["a:1", "--header", "x"], "--header"),
        (["a:1", "--header", "x: €"], "--header: a header has only characters of Latin-1"),
        (["a:1", "--key", "€"], "--key: a key has only characters of Latin-1"),
        (["a:1", "--isl", "nan"], "--isl: a finite number was expected"),
        (["a:1", "--osl-stddev", "inf"], "--osl-stddev: a finite number was expected"),
    ],
)
def test_what_cannot_be_done_is_said(words: list[str], said: str) -> None:
    result = bench(*words)
    assert result.exit_code in (1, 2)
    assert said in result.output


def test_bad_levels_are_said() -> None:
    with scripted() as server:
        for words in (
            ["--concurrency", "0"],
            ["--concurrency", "x"],
            ["--request-rate", "-1"],
            ["--workload", "nothing"],
        ):
            result = bench(server.url, "--tokenizer", MODEL_DIR, *words)
            assert result.exit_code in (1, 2), words
            assert words[0].removeprefix("--").replace("-", " ") in result.output.replace("-", " "), result.output


def test_a_model_that_is_not_served_is_said() -> None:
    with scripted(cards=[{"id": "a"}, {"id": "b"}]) as server:
        result = bench(server.url, "--model", "c")
    assert "does not serve 'c' but a, b" in result.output


def test_a_server_that_wants_a_key_says_so() -> None:
    with scripted(key="right") as server:
        result = bench(server.url, "--tokenizer", MODEL_DIR, "--key", "wrong")
        assert result.exit_code == 1
        assert "wants a key: a key is needed (--key, or SLIPSTREAM_API_KEY)" in result.output
        assert bench(server.url, "--tokenizer", MODEL_DIR, "--key", "right", "--request-count", 1).exit_code == 0


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (b"SSH-2.0-OpenSSH_9.2\r\n", "does not speak HTTP: SSH-2.0-OpenSSH_9.2"),
        (b"", "cannot be reached: Remote end closed connection"),
        (
            b'HTTP/1.1 503 X\r\ncontent-length: 31\r\n\r\n{"error": {"message": "later"}}',
            "/v1/models answers with status 503: later",
        ),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n<p>It</p>", "does not say which models it serves; give --model"),
    ],
)
def test_what_else_listens_there_is_said(answer: bytes, said: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            connection, _ = listening.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        result = bench(f"127.0.0.1:{listening.getsockname()[1]}", "--tokenizer", MODEL_DIR)
        thread.join()
    assert result.exit_code == 1
    assert said in result.output
    assert result.output.strip().count("\n") == 0


async def limited(writer: asyncio.StreamWriter, body: dict[str, Any], number: int) -> None:
    whole(writer, 429, {"error": {"message": "too many"}}, "Retry-After: 7\r\n")


def test_a_server_that_has_no_room_says_when_to_come_back() -> None:
    with scripted(limited) as server:
        result = bench(server.url, "--tokenizer", MODEL_DIR, "--warm-up", 1)
    assert result.exit_code == 1
    assert "no request of the warm-up succeeded: HTTP 429: too many (Retry-After: 7 s)" in result.output


def test_a_server_that_dies_in_a_sweep_loses_no_report(tmp_path: Path) -> None:
    file = tmp_path / "o.json"

    async def dies(writer: asyncio.StreamWriter, body: dict[str, Any], number: int) -> None:
        if number < 4:
            await normal(writer, body, number)
            return
        server.stopped()
        raise ConnectionError

    with scripted(dies) as server:
        result = bench(
            server.url, "--concurrency", "1,2,4", "--request-count", 4, "--warm-up", 0, "--osl", 2,
            "--tokenizer", MODEL_DIR, "--json", file,
        )  # fmt: skip
    assert result.exit_code == 0, result.output  # short levels: too short for the server to count as gone
    first, second, third = json.loads(file.read_text())["levels"]
    assert first["metrics"]["request_count"]["avg"] == 4
    assert (second["metrics"]["error_count"]["avg"], third["metrics"]["error_count"]["avg"]) == (4, 4)
    assert {"connection closed", "connection refused"} >= {error["kind"] for error in second["errors"]}

    with scripted(dies) as server:
        result = bench(
            server.url, "--concurrency", "1,2,4", "--request-count", 2, "--warm-up", 2, "--osl", 2,
            "--tokenizer", MODEL_DIR,
        )  # fmt: skip
    assert result.exit_code == 1
    assert "Metrics, concurrency 1" in result.output
    assert "concurrency 2 broke off: no request of the warm-up succeeded: connection" in result.output


@pytest.mark.parametrize("level", [LoadLevel(2), LoadLevel(rate=100.0, arrivals="constant")])
def test_a_level_is_over_when_nobody_could_connect_for_long(level: LoadLevel) -> None:
    async def main(target: Target) -> LevelRun:
        sender = RequestSender(target, 5.0, RequestBody(target))
        conversations = itertools.repeat(Conversation([Turn("x", 1)]))
        extent = Extent(num_requests=100_000, gone_s=0.1)
        return await run_level(sender, conversations, level, extent, asyncio.Event(), 0)

    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        run = asyncio.run(main(Target.of_url(f"http://127.0.0.1:{silent.getsockname()[1]}")))
    assert "no connection for 0.1 s" in run.broke_off
    assert {answer.kind for answer in run.answers} == {"connection refused"}
    assert run.num_unfinished == 0


def test_a_client_that_was_told_when_to_come_back_comes_no_sooner_unless_it_is_over() -> None:
    with scripted(limited) as server:
        target = Target.of_url(server.url)

        async def main() -> LevelRun:
            sender = RequestSender(target, 5.0, RequestBody(target))
            conversations = itertools.repeat(Conversation([Turn("x", 1)]))
            try:
                return await run_level(sender, conversations, LoadLevel(3), Extent(duration_s=0.3), asyncio.Event(), 0)
            finally:
                sender.close()

        run = asyncio.run(main())
    assert [answer.retry_after_s for answer in run.answers] == [7.0] * 3


@pytest.fixture
def self_signed(tmp_path: Path) -> ssl.SSLContext:
    """A certificate for 127.0.0.1 that no authority has signed."""
    key, cert = tmp_path / "key.pem", tmp_path / "cert.pem"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command += ["-days", "1", "-subj", "/CN=127.0.0.1", "-keyout", str(key), "-out", str(cert)]
    subprocess.run(command, check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    return context


def test_a_certificate_that_nobody_vouches_for_is_taken_if_told_to(self_signed: ssl.SSLContext) -> None:
    with scripted(tls=self_signed) as server:
        options = [server.url, "--tokenizer", MODEL_DIR, "--osl", 2, "--request-count", 3]
        result = bench(*options)
        assert result.exit_code == 1
        assert "(--insecure takes any certificate)" in result.output
        result = bench(*options, "--insecure")
    assert result.exit_code == 0, result.output
    assert "time_to_first_token" in result.output


def test_a_server_that_does_not_stream_is_named() -> None:
    async def unstreamed(writer: asyncio.StreamWriter, body: dict[str, Any], number: int) -> None:
        await normal(writer, {**body, "stream": False}, number)

    with scripted(unstreamed) as server:
        result = bench(server.url, "--osl", 2, "--request-count", 3, "--tokenizer", MODEL_DIR)
    assert result.exit_code == 0, result.output
    assert "3 of 3 answers were no stream: they have no TTFT and no ITL." in result.output


def test_ctrl_c_gives_the_report_so_far() -> None:
    async def third_hangs(writer: asyncio.StreamWriter, body: dict[str, Any], number: int) -> None:
        if number == 2:
            os.kill(os.getpid(), signal.SIGINT)
            await asyncio.Event().wait()
        await normal(writer, body, number)

    with scripted(third_hangs) as server:
        result = bench(server.url, "--osl", 2, "--warm-up", 0, "--request-count", 9, "--tokenizer", MODEL_DIR)
    assert result.exit_code == 130, result.output
    assert "Interrupted" in result.output
    assert "unfinished_count" in result.output
    assert len(server.bodies) == 3


def test_ctrl_c_in_the_warm_up_ends_it_without_a_report() -> None:
    async def hangs(writer: asyncio.StreamWriter, body: dict[str, Any], number: int) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        await asyncio.Event().wait()

    with scripted(hangs) as server:
        result = bench(server.url, "--warm-up", 1, "--tokenizer", MODEL_DIR)
    assert result.exit_code == 130, result.output
    assert "before anything was measured" in result.output


@pytest.fixture
def heeds_ctrl_c() -> Iterator[None]:
    """The shell that started the tests in the background may have had SIGINT ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("heeds_ctrl_c")
def test_ctrl_c_during_the_first_look_at_the_server_is_no_failure_of_it() -> None:
    def hang(server: socket.socket, is_over: threading.Event) -> None:
        caller, _ = server.accept()
        with caller:
            caller.recv(4096)  # it has connected and waits for an answer
            os.kill(os.getpid(), signal.SIGINT)
            is_over.wait()

    is_over = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=hang, args=(server, is_over))
        thread.start()
        result = bench(f"http://127.0.0.1:{server.getsockname()[1]}", "--tokenizer", MODEL_DIR)
        is_over.set()
        thread.join()
    assert result.exit_code == 130, result.output
    assert "before anything was measured" in result.output


def test_a_duration_ends_a_level_and_lets_answers_end() -> None:
    with scripted() as server:
        result = bench(server.url, "--osl", 2, "--duration", 2, "--concurrency", 2, "--tokenizer", MODEL_DIR)
    assert result.exit_code == 0, result.output
    assert "unfinished_count" not in result.output
    assert len(server.bodies) > 6


def test_the_progress_line_tells_how_far_it_is() -> None:
    run = LevelRun(LoadLevel(8), num_running=8)
    line = progress_line(run, Extent(100), 2.0)
    assert "concurrency 8" in line
    assert "0/100 requests, 8 running" in line
