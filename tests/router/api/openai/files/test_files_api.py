"""Files over HTTP, with OpenAI's client and with forms that it would not send."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from pathlib import Path

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai import APIStatusError, NotFoundError

from slipstream.router.api.openai.files.multipart import parse_form
from slipstream.router.config.store_config import GIB, StoreConfig
from slipstream.router.http.http_error import HttpError
from slipstream.router.store.object_database import ObjectDatabase
from tests.support.router.fake_cluster import front, openai_client, run

TYPE = {"Content-Type": "multipart/form-data; boundary=b"}
LARGE = b"0123456789abcdef" * 65_536  # 1 MiB


def form(*fields: tuple[str, str | None, bytes]) -> bytes:
    parts = b""
    for name, filename, data in fields:
        named = f'; filename="{filename}"' if filename is not None else ""
        parts += f'--b\r\nContent-Disposition: form-data; name="{name}"{named}\r\n\r\n'.encode() + data + b"\r\n"
    return parts + b"--b--\r\n"


def test_the_client_uploads_lists_reads_and_deletes_files(tmp_path: Path) -> None:
    async def main() -> None:
        async with front(store=tmp_path) as site, openai_client(site) as client:
            made = [await client.files.create(file=(f"f{n}.jsonl", b"%d\n" % n), purpose="batch") for n in range(3)]
            assert (made[0].filename, made[0].bytes, made[0].purpose, made[0].status) == (
                *("f0.jsonl", 2, "batch"),
                "processed",
            )
            assert made[0] == await client.files.retrieve(made[0].id)
            page = await client.files.list(limit=2)
            assert [one.id for one in page.data] == [made[2].id, made[1].id]
            assert [one.id async for one in client.files.list(limit=1, order="asc")] == [one.id for one in made]
            assert [one.id async for one in client.files.list(purpose="batch_output")] == []
            assert (await client.files.content(made[1].id)).content == b"1\n"
            assert (await client.files.delete(made[1].id)).deleted
            with pytest.raises(NotFoundError):
                await client.files.content(made[1].id)
            large = await client.files.create(file=("large", LARGE), purpose="batch")
            assert (await client.files.content(large.id)).content == LARGE
            short = await client.files.create(
                file=("s", b"x"), purpose="batch", expires_after={"anchor": "created_at", "seconds": 3600}
            )
            assert short.expires_at == short.created_at + 3600

    run(main)


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        (form(("purpose", None, b"batch")), 400, "file"),
        (form(("file", "f", b"x")), 400, "purpose"),
        (form(("file", "f", b"x"), ("purpose", None, b"fine-tune")), 400, "purpose"),
        (form(("file", None, b"x"), ("purpose", None, b"batch")), 400, "file"),
        (
            form(("file", "f", b"x"), ("purpose", None, b"batch"), ("expires_after[seconds]", None, b"1")),
            *(400, "expires_after[seconds]"),
        ),
        (form(("file", "f", b"x"))[:-8], 400, None),
        (b"", 400, None),
    ],
)
def test_a_form_that_is_wrong_is_refused_by_name(tmp_path: Path, body: bytes, status: int, param: str | None) -> None:
    async def main() -> None:
        async with front(store=tmp_path) as site:
            got, _, answer = await site.request("POST", "/v1/files", body, TYPE)
            assert (got, orjson.loads(answer)["error"]["param"]) == (status, param)

    run(main)


def test_without_a_store_and_with_a_full_one_the_answer_says_so(tmp_path: Path) -> None:
    async def main() -> None:
        async with front() as site, openai_client(site) as client:
            with pytest.raises(APIStatusError) as error:
                await client.files.create(file=("f", b"x"), purpose="batch")
            assert (error.value.status_code, error.value.code) == (503, "store_unavailable")
            assert "router.store" in error.value.message
        small = StoreConfig(directory=str(tmp_path), max_gib=1000 / GIB)
        async with front(store=small) as site, openai_client(site) as client:
            with pytest.raises(APIStatusError) as error:
                await client.files.create(file=("f", b"x" * 2000), purpose="batch")
            assert (error.value.status_code, error.value.code) == (507, "store_full")
            _, _, page = await site.request("GET", "/metrics")
            assert b'slipstream:store_errors_total{call="full"} 1.0' in page
            assert b"slipstream:store_bytes 0.0" in page

    run(main)


@given(
    st.dictionaries(st.text("abc-_", min_size=1, max_size=8), st.binary(max_size=200), max_size=5),
    st.text("abcXYZ019'()+_,-./:=?", min_size=1, max_size=70),
)
def test_a_form_is_read_as_it_was_written(fields: dict[str, bytes], boundary: str) -> None:
    if any(boundary.encode() in data for data in fields.values()):
        return
    body = b""
    for name, data in fields.items():
        head = f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"; filename="x"\r\n\r\n'
        body += head.encode() + data + b"\r\n"
    body += f"--{boundary}--".encode()
    found = parse_form(body, f'multipart/form-data; boundary="{boundary}"'.encode())
    assert {name: bytes(part.data) for name, part in found.items()} == fields


@given(st.binary(max_size=300), st.integers(0, 200))
def test_whatever_a_body_holds_it_is_read_or_refused(noise: bytes, at: int) -> None:
    whole = form(("file", "f", b"x\r\n--"), ("purpose", None, b"batch"))
    for body in (noise, b"--b" + noise, whole[:at] + noise + whole[at:], whole[:at]):
        with contextlib.suppress(HttpError):
            parse_form(body, b"multipart/form-data; boundary=b")


def test_a_front_serves_before_its_store_is_open_and_calls_of_the_store_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_open, open_database = threading.Event(), ObjectDatabase.open

    def held(database: ObjectDatabase) -> None:
        may_open.wait(10)
        open_database(database)

    monkeypatch.setattr(ObjectDatabase, "open", held)

    async def main() -> None:
        async with front(store=tmp_path) as site, openai_client(site) as client:
            uploading = asyncio.create_task(client.files.create(file=("f", b"x"), purpose="batch"))
            status, _, _ = await site.request("GET", "/health/live")
            assert (status, uploading.done()) == (200, False)
            may_open.set()
            assert (await uploading).bytes == 1

    run(main)


def test_a_name_in_a_character_set_of_its_own_is_text() -> None:
    head = b"--b\r\nContent-Disposition: form-data; name=\"file\"; filename*=utf-7''+2AA-\r\n\r\n"
    assert parse_form(head + b"x\r\n--b--\r\n", b"multipart/form-data; boundary=b")["file"].filename == "?"
