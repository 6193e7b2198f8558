"""`slipstream batch` against a front, with its real client."""

from __future__ import annotations

import asyncio
import json
import tempfile
from pathlib import Path

import orjson
import pytest
from click.testing import CliRunner, Result

from slipstream.cluster.tools.batch import batch_client, batch_command, batch_parts
from slipstream.router.api.openai.batches import batch_input, batch_run, batch_runner
from tests.support.router.fake_cluster import MODEL, FrontUnderTest, front, run

CHAT = "/v1/chat/completions"


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_run, "LOOK_EVERY_S", 0.02)
    monkeypatch.setattr(batch_runner, "LOOK_EVERY_S", 0.02)
    monkeypatch.setattr(batch_command, "LOOK_EVERY_S", 0.02)


def line(custom_id: str, url: str = CHAT, **fields: object) -> bytes:
    if url == CHAT:
        body = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], **fields}
    else:
        body = {"model": MODEL, "prompt": "hi", **fields}
    return orjson.dumps({"custom_id": custom_id, "method": "POST", "url": url, "body": body}) + b"\n"


async def called(site: FrontUnderTest, *arguments: str | Path) -> Result:
    """The command, which blocks, in a thread."""
    url = f"http://127.0.0.1:{site.port}"
    given = [*map(str, arguments), "--url", url]
    return await asyncio.to_thread(CliRunner().invoke, batch_command.batch_command, given)


def ids_in(path: Path) -> list[str]:
    return [json.loads(text)["custom_id"] for text in path.read_bytes().splitlines()]


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("*"))


def test_requests_of_several_kinds_come_back_in_order_and_nothing_stays_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_parts, "MAX_LINES", 3)
    source, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    lines = [line(f"n{n}", "/v1/completions" if n % 3 == 1 else CHAT) for n in range(10)]
    lines[4] = line("n4", temperature=99)
    source.write_bytes(b"\n".join(lines))

    async def main() -> None:
        async with front("Hello.", store=tmp_path / "store") as site:
            result = await called(site, source, output)
            assert result.exit_code == 1, result.output
            assert "9 answers" in result.output
            assert ids_in(output) == [f"n{n}" for n in range(10) if n != 4]
            assert ids_in(tmp_path / "out.jsonl.errors") == ["n4"]
            _, _, files = await site.request("GET", "/v1/files")
            assert orjson.loads(files)["data"] == []
            assert names_in(tmp_path) == ["in.jsonl", "out.jsonl", "out.jsonl.errors", "store"]
            result = await called(site, source, output)
            assert result.exit_code == 1
            assert "is there already" in result.output

    run(main)


def test_wrong_lines_are_named_by_number_and_nothing_is_sent(tmp_path: Path) -> None:
    source = tmp_path / "in.jsonl"
    source.write_bytes(line("a") + b"{\n\n" + line("a") + line("b", "elsewhere") + line("c", "/v1/messages"))

    async def main() -> None:
        async with front(store=tmp_path / "store") as site:
            result = await called(site, source, tmp_path / "out")
            assert result.exit_code == 1
            for text in (
                f"{source}:2: It is not JSON",
                f"{source}:4: 'custom_id' 'a' was used in line 1",
                f"{source}:5: 'url' must be /v1/chat/completions or ",
                f"{source}:6: 'url' must be {' or '.join(batch_input.ENDPOINTS)}, got \"/v1/messages\"",
            ):
                assert text in result.output
            _, _, files = await site.request("GET", "/v1/files")
            assert orjson.loads(files)["data"] == []

    run(main)


def test_the_next_call_goes_on_with_what_an_interrupted_one_began(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, output = tmp_path / "in.jsonl", tmp_path / "out"
    source.write_bytes(line("a") + line("b"))

    def interrupted(seconds: float) -> None:
        raise KeyboardInterrupt

    async def main() -> None:
        async with front("Hello.", store=tmp_path / "store", hold_at=1) as site:
            with monkeypatch.context() as patched:
                patched.setattr(batch_command.time, "sleep", interrupted)
                result = await called(site, source, output)
            assert result.exit_code == 130
            assert "The cluster goes on" in result.output
            assert (tmp_path / "out.progress").exists()
            site.service.release.set()
            result = await called(site, source, output)
            assert result.exit_code == 0, result.output
            assert ids_in(output) == ["a", "b"]
            _, _, batches = await site.request("GET", "/v1/batches")
            assert len(orjson.loads(batches)["data"]) == 1

    run(main)


def test_an_interruption_before_the_first_batch_says_that_nothing_has_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "in.jsonl"
    source.write_bytes(line("a"))

    def interrupted(*_: object) -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr(batch_client.BatchClient, "upload", interrupted)
    result = CliRunner().invoke(
        batch_command.batch_command, [str(source), str(tmp_path / "out"), "--url", "http://127.0.0.1:1"]
    )
    assert result.exit_code == 130
    assert "Nothing has begun in the cluster." in result.output
    assert "goes on" not in result.output


def test_what_an_earlier_call_began_can_be_cancelled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, output = tmp_path / "in.jsonl", tmp_path / "out"
    source.write_bytes(line("a"))

    def interrupted(seconds: float) -> None:
        raise KeyboardInterrupt

    async def main() -> None:
        async with front("Hello.", store=tmp_path / "store", hold_at=0) as site:
            with monkeypatch.context() as patched:
                patched.setattr(batch_command.time, "sleep", interrupted)
                await called(site, source, output)
            result = await called(site, source, output, "--cancel")
            assert result.exit_code == 1
            assert "1 not served" in result.output
            source.write_bytes(line("b"))
            result = await called(site, source, tmp_path / "other", "--cancel")
            assert "nothing to cancel" in result.output

    run(main)


def test_errors_may_lie_on_another_file_system(tmp_path: Path) -> None:
    source, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_bytes(line("a", temperature=99))

    async def main() -> None:
        async with front("Hello.", store=tmp_path / "store") as site:
            with tempfile.TemporaryDirectory(dir="/dev/shm") as elsewhere:
                errors = Path(elsewhere) / "errors"
                assert (await called(site, source, output, "--errors", errors)).exit_code == 1
                assert (ids_in(output), ids_in(errors), names_in(Path(elsewhere))) == ([], ["a"], ["errors"])

    run(main)


@pytest.mark.parametrize("option", ["output", "errors"])
def test_nothing_is_sent_if_the_answers_cannot_be_written(tmp_path: Path, option: str) -> None:
    source = tmp_path / "in.jsonl"
    source.write_bytes(line("a"))
    paths = {name: str(tmp_path / ("nowhere" if name == option else "") / name) for name in ("output", "errors")}

    async def main() -> None:
        async with front("Hello.", store=tmp_path / "store") as site:
            result = await called(site, source, paths["output"], "--errors", paths["errors"])
            assert (result.exit_code, "cannot be written" in result.output) == (1, True)
            assert not names_in(tmp_path / "store" / "blobs")

    run(main)


def test_a_router_that_is_not_there_is_reported_in_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_client, "PATIENCE_S", 0.0)
    source = tmp_path / "in.jsonl"
    source.write_bytes(line("a"))
    url = "http://127.0.0.1:1"
    result = CliRunner().invoke(batch_command.batch_command, [str(source), str(tmp_path / "out"), "--url", url])
    assert result.exit_code == 1
    assert "the router at 127.0.0.1:1 cannot be reached" in result.output
