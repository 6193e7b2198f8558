"""`slipstream explain`: against a real front, and every way in which there is nothing to tell."""

from __future__ import annotations

import asyncio
import json
import os
import socket
from pathlib import Path

import orjson
import pytest
from click.testing import CliRunner, Result

from slipstream.cluster.cli import main
from slipstream.cluster.processes import process_tree
from slipstream.cluster.state import host_folders, state_file
from slipstream.cluster.state.cluster_state import ClusterState
from tests.support.router.fake_cluster import front, run


def explain(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["explain", *arguments])


@pytest.fixture
def run_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.delenv("SLIPSTREAM_API_KEY", raising=False)
    folder = host_folders.run_folder()
    folder.mkdir(parents=True)
    return folder


def cluster_here(folder: Path, name: str, url: str) -> None:
    """As if this process were the driver of a cluster."""
    pid = os.getpid()
    started = process_tree.start_time(pid)
    assert started is not None
    state = ClusterState(name, pid, started, "c.yaml", "demo", url=url)
    state_file.write(folder / f"{name}.json", state)


def test_it_finds_the_cluster_lists_its_requests_and_tells_the_way_of_one(run_folder: Path) -> None:
    async def main() -> None:
        async with front("Hello there") as site:
            url = f"http://127.0.0.1:{site.port}"
            _, _, body = await site.post("/v1/completions", prompt="hi", max_tokens=2)
            request_id = orjson.loads(body)["id"]
            cluster_here(run_folder, "one", url)
            result = await asyncio.to_thread(explain, request_id)
            assert result.exit_code == 0, result.output
            assert result.output.startswith(f"request {request_id}")
            listed = await asyncio.to_thread(explain, "--last", "5")
            assert request_id in listed.output
            assert (await asyncio.to_thread(explain)).output == listed.output
            as_json = await asyncio.to_thread(explain, request_id, "--json", "--url", f"{url}/v1/")
            assert json.loads(as_json.output)["request_id"] == request_id
            unknown = await asyncio.to_thread(explain, "no/such id", "--name", "one")
            assert unknown.exit_code == 1
            assert "no record of request 'no/such id'" in unknown.output
            cluster_here(run_folder, "two", url)
            assert "several clusters run here, say which one with --name: one, two" in explain(request_id).output

    run(main)


def test_without_a_cluster_it_says_what_to_give(run_folder: Path) -> None:
    assert "no cluster runs here; for one elsewhere give --url" in explain("r").output
    assert "no cluster named x runs here" in explain("r", "--name", "x").output
    cluster_here(run_folder, "young", "")
    assert "young does not listen yet" in explain("r").output
    assert explain("r").exit_code == 1


def test_a_router_that_is_not_there_or_is_none_is_said_in_one_line(run_folder: Path) -> None:
    with socket.socket() as bound:  # bound, but not listening
        bound.bind(("127.0.0.1", 0))
        result = explain("r", "--url", f"http://127.0.0.1:{bound.getsockname()[1]}")
    assert result.exit_code == 1
    assert "cannot be reached" in result.output
    for wrong in ("nonsense", "http://[::1"):
        assert "is not a Slipstream router" in explain("r", "--url", wrong).output
    assert explain("r", "--url", "http://x", "--name", "y").exit_code == 2
    assert explain("r", "--last", "3").exit_code == 2


@pytest.mark.parametrize(
    ("status", "body", "words"),
    [
        (401, b'{"error":{"message":"This API key is unknown.","code":"invalid_api_key"}}', "unknown. (--key, or SLIP"),
        (404, b'{"error":{"message":"There is nothing at /x.","code":"not_found"}}', "router.admin"),
        (404, b"<html>", "status 404 and is perhaps no Slipstream router"),
        (200, b"<html>", "is not a Slipstream router"),
    ],
)
def test_what_a_router_refuses_is_told_in_its_words(run_folder: Path, status: int, body: bytes, words: str) -> None:
    async def main() -> None:
        seen = []

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            seen.append(await reader.readuntil(b"\r\n\r\n"))
            writer.write(b"HTTP/1.1 %d X\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % (status, len(body)))
            writer.write(body)
            writer.close()

        async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            result = await asyncio.to_thread(explain, "r", "--url", f"http://127.0.0.1:{port}", "--key", "sk-1")
        assert result.exit_code == 1
        assert words in result.output
        assert b"Authorization: Bearer sk-1\r\n" in seen[0]

    run(main)
