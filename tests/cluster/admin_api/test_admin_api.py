"""The admin API: who may ask, what is answered, and what is said about questions that make no sense."""

from __future__ import annotations

import asyncio
import re
import socket
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from click.testing import CliRunner

from slipstream.cluster.access.admin_token import read_token
from slipstream.cluster.access.token_file import AdminTokens, parse_tokens
from slipstream.cluster.admin_api import body_limit, uvicorn_server
from slipstream.cluster.admin_api.admin_app import build_app
from slipstream.cluster.admin_api.admin_server import AdminServer, operating
from slipstream.cluster.admin_api.driver_parts import DriverParts
from slipstream.cluster.admin_api.history_routes import history_routes
from slipstream.cluster.cli import main
from slipstream.cluster.config.cluster_config import AdminApiConfig
from slipstream.cluster.state.cluster_state import ClusterState
from slipstream.router.protocol.messages import Role
from tests.support.cluster.fake_fleet import FakeFleet, FakeFleets, FakeRouterView

TOKEN = "a-token-for-the-tests"
JSON = {"Content-Type": "application/json"}
SHOWN = {"Authorization": f"Bearer {TOKEN}"}


def parts_of(fleet: FakeFleet, tokens_file: Path | None = None) -> DriverParts:
    state = ClusterState("demo", 1, 2.0, "/c.yaml", "model", operator_token=TOKEN)
    return DriverParts(
        FakeFleets({"model": fleet}), state, FakeRouterView({"num_waiting": 3}), AdminTokens(TOKEN, tokens_file)
    )


def asking(
    asked: FakeFleet | DriverParts, ask: Callable[[httpx.AsyncClient], Awaitable[httpx.Response]]
) -> httpx.Response:
    parts = asked if isinstance(asked, DriverParts) else parts_of(asked)

    async def run() -> httpx.Response:
        transport = httpx.ASGITransport(app=build_app(parts, [history_routes(parts.changes)]))
        async with httpx.AsyncClient(transport=transport, base_url="http://operator", headers=SHOWN) as client:
            return await ask(client)

    return asyncio.run(run())


@pytest.mark.parametrize("shown", ["", "Bearer wrong", TOKEN])
def test_nobody_without_the_token_is_told_or_changes_anything(shown: str) -> None:
    fleet, headers = FakeFleet(), {"Authorization": shown}
    question = {"role": "decode", "replicas": 0}
    for answer in (
        asking(fleet, lambda client: client.get("/v1/fleet", headers=headers)),
        asking(fleet, lambda client: client.post("/v1/fleet/scale", json=question, headers=headers)),
    ):
        assert answer.status_code == 401
        assert answer.json()["error"]["code"] == "unauthorized"
    assert fleet.asked == []


def test_a_read_only_token_sees_everything_and_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "tokens.yaml"
    made = CliRunner().invoke(main, ["tokens", "add", str(path), "grafana", "--role", "read"])
    headers = {"Authorization": f"Bearer {made.stdout.strip()}"}
    parts = parts_of(FakeFleet(), path)
    question = {"role": "decode", "replicas": 0}
    assert asking(parts, lambda client: client.get("/v1/fleet", headers=headers)).status_code == 200
    refused = asking(parts, lambda client: client.post("/v1/fleet/scale", json=question, headers=headers))
    assert (refused.status_code, refused.json()["error"]["code"]) == (403, "read_only")
    assert refused.json()["error"]["message"] == "the token grafana has the role read, which may change nothing"
    assert "grafana  read" in CliRunner().invoke(main, ["tokens", "list", str(path)]).output
    assert CliRunner().invoke(main, ["tokens", "remove", str(path), "grafana"]).exit_code == 0
    assert asking(parts, lambda client: client.get("/v1/fleet", headers=headers)).status_code == 401
    assert asking(parts, lambda client: client.get("/v1/fleet")).status_code == 200, "the single token stays valid"


def test_the_history_has_the_name_of_the_token_and_the_reason(tmp_path: Path) -> None:
    path = tmp_path / "tokens.yaml"
    made = CliRunner().invoke(main, ["tokens", "add", str(path), "alice"])
    parts = parts_of(FakeFleet(), path)
    question, headers = {"role": "decode", "replicas": 2}, {"Authorization": f"Bearer {made.stdout.strip()}"}
    asking(parts, lambda c: c.post("/v1/fleet/scale?reason=more%20load", json=question, headers=headers))
    asking(parts, lambda client: client.post("/v1/fleet/scale", json=question | {"replicas": 1}))
    found = asking(parts, lambda client: client.get("/v1/history?after=0")).json()["changes"]
    assert [(one["who"], one["subject"], one["old"], one["new"], one["why"]) for one in found] == [
        ("alice", "decode", "1", "2", "more load"),
        ("operator", "decode", "2", "1", ""),
    ]


@pytest.mark.parametrize(
    ("entry", "sentence"),
    [
        ({"name": "a b"}, "token 'a b': name: must be up to 64 letters"),
        ({"name": "planner"}, "token 'planner': name: planner is the name of a part of the cluster"),
        ({"name": "keys_file"}, "token 'keys_file': name: keys_file is the name of a part of the cluster"),
        ({"sha256": "x"}, "token 'alice': sha256: must be 64 hexadecimal digits"),
        ({"role": "admin"}, "token 'alice': role: must be read or operator, got 'admin'"),
        ({"secret": "x"}, "token 'alice': secret: unknown; known here: name, sha256, role"),
    ],
)
def test_a_broken_file_of_tokens_is_refused_with_the_field(entry: dict[str, str], sentence: str) -> None:
    token = {"name": "alice", "sha256": "ab" * 32, "role": "read"} | entry
    with pytest.raises(ValueError, match=sentence):
        parse_tokens(yaml.safe_dump({"tokens": [token]}))


def test_the_api_describes_itself_to_everybody() -> None:
    spec = asking(FakeFleet(), lambda client: client.get("/openapi.json", headers={"Authorization": ""})).json()
    assert {"/v1/fleet", "/v1/fleet/scale", "/v1/workers/{name}/drain", "/v1/workers/{name}/role"} <= set(spec["paths"])
    assert spec["components"]["securitySchemes"]


def test_the_page_that_shows_the_api_needs_no_other_host() -> None:
    page = asking(FakeFleet(), lambda client: client.get("/docs", headers={"Authorization": ""})).text
    loaded = re.findall(r'(?:src|href)="([^"]+)"', page)
    assert any(path.endswith("swagger-ui-bundle.js") for path in loaded)
    for path in loaded:
        assert asking(FakeFleet(), lambda client, path=path: client.get(path)).status_code == 200, path


def test_scaling_names_what_is_new() -> None:
    fleet = FakeFleet(num_decode=1)
    answer = asking(fleet, lambda client: client.post("/v1/fleet/scale", json={"role": "decode", "replicas": 3}))
    assert answer.status_code == 202
    assert answer.json()["added"] == ["decode-1", "decode-2"]
    assert answer.json()["num_decode"] == 3
    assert answer.json()["warning"] is None


def test_groups_for_which_the_host_has_too_little_memory_start_with_a_warning() -> None:
    def warning(replicas: Mapping[str, Mapping[Role, int]]) -> str | None:
        return f"the host has too little for {replicas['model']['decode']}"

    parts = replace(parts_of(FakeFleet(num_decode=2)), memory_warning=warning)
    said = [
        asking(parts, lambda c, n=n: c.post("/v1/fleet/scale", json={"role": "decode", "replicas": n})).json()[
            "warning"
        ]
        for n in (99, 1)
    ]
    assert said == ["the host has too little for 99", None]


@pytest.mark.parametrize(("role", "warning"), [("prefill", "compute prompts themselves"), ("decode", "requests wait")])
def test_an_empty_pool_is_allowed_with_a_warning(role: str, warning: str) -> None:
    answer = asking(FakeFleet(), lambda client: client.post("/v1/fleet/scale", json={"role": role, "replicas": 0}))
    assert answer.status_code == 202
    assert warning in answer.json()["warning"]


def test_drain_and_role_reach_the_fleet() -> None:
    fleet = FakeFleet(num_decode=2)
    asking(fleet, lambda client: client.post("/v1/workers/decode-0/drain"))
    asking(fleet, lambda client: client.post("/v1/workers/decode-1/drain", json={"migrate": False}))
    answer = asking(fleet, lambda client: client.post("/v1/workers/prefill-0/role", json={"role": "decode"}))
    assert fleet.asked == [
        ("remove", "decode-0", True),
        ("remove", "decode-1", False),
        ("switch", "prefill-0", "decode"),
    ]
    assert "no prefill worker is left" in answer.json()["warning"]


@pytest.mark.parametrize(
    ("path", "body", "status", "param", "message"),
    [
        ("/v1/fleet/scale", {"role": "encode", "replicas": 1}, 400, "role", "'prefill' or 'decode', got 'encode'"),
        ("/v1/fleet/scale", {"role": "decode"}, 400, "replicas", "field required"),
        ("/v1/fleet/scale", {"role": "decode", "replicas": -1}, 400, "replicas", "greater than or equal to 0, got -1"),
        ("/v1/fleet/scale", {"role": "decode", "replicas": "2"}, 400, "replicas", "must be a valid integer, got '2'"),
        ("/v1/fleet/scale", {"role": "decode", "replicas": 2, "x": 1}, 400, "x", "extra inputs are not permitted"),
        ("/v1/workers/decode-9/drain", None, 404, "name", "there is no worker 'decode-9'"),
        ("/v1/workers/..%2Fx/drain", None, 404, "name", "there is no worker '../x'"),
        ("/v1/workers/a%0Ab/drain", None, 404, "name", r"there is no worker 'a\nb'"),
        ("/v1/workers/%0A/role", {"role": "decode"}, 404, "name", r"there is no worker '\n'"),
        ("/v1/workers//drain", None, 404, "name", "there is no worker ''"),
        ("/v1/workers/a%2Fdrain/role", {"role": "decode"}, 404, "name", "there is no worker 'a/drain'"),
        ("/v1/workers/decode-9/role", {"role": "decode"}, 404, "name", "there is no worker 'decode-9'"),
        ("/v1/workers/decode-0/role", {}, 400, "role", "field required"),
        ("/v1/workers/decode-0/drain", {"migrate": "yes"}, 400, "migrate", "must be a valid boolean, got 'yes'"),
        ("/v1/nothing", {}, 404, None, "Not Found"),
    ],
)
def test_what_cannot_be_done_names_the_field(
    path: str, body: dict[str, Any] | None, status: int, param: str | None, message: str
) -> None:
    fleet = FakeFleet()
    answer = asking(fleet, lambda client: client.post(path, json=body))
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (status, param)
    assert message in error["message"]
    assert fleet.asked == []


def test_what_is_no_json_is_the_bodys_mistake() -> None:
    answer = asking(FakeFleet(), lambda client: client.post("/v1/fleet/scale", content=b"{", headers=JSON))
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "body")
    assert answer.json()["error"]["message"].startswith("body: not JSON: ")


@pytest.mark.parametrize("shown", ["", f"Bearer {TOKEN}"])
def test_nobody_makes_the_driver_read_a_huge_body(shown: str) -> None:
    num_read = 0

    async def chunks() -> AsyncIterator[bytes]:
        nonlocal num_read
        while True:
            num_read += 1
            yield b" " * 4096

    fleet, headers = FakeFleet(), JSON | {"Authorization": shown}
    answer = asking(fleet, lambda client: client.post("/v1/fleet/scale", content=chunks(), headers=headers))
    assert (answer.status_code, answer.json()["error"]["code"]) == (413, "too_large")
    assert num_read == 17
    assert fleet.asked == []


def test_status_shows_the_routers_view_and_keeps_the_token_to_itself() -> None:
    answer = asking(FakeFleet(), lambda client: client.get("/v1/status"))
    assert answer.json()["name"] == "demo"
    assert answer.json()["router"] == {"num_waiting": 3}
    assert TOKEN not in answer.text


def test_served_on_a_port_that_listens_before_the_api_is_there() -> None:
    async def run() -> None:
        port = AdminServer(AdminApiConfig(), 0)
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port.port}", headers=SHOWN, timeout=30) as client:
            early = asyncio.create_task(client.get("/v1/fleet"))
            async with operating(port, parts_of(FakeFleet())):
                assert (await early).status_code == 200
            with pytest.raises(httpx.ConnectError):
                await client.get("/v1/fleet")

    asyncio.run(run())


@pytest.mark.parametrize(
    ("said", "heard"),
    [
        (b"", b""),
        (b"GET /v1/fleet HTTP/1.1\r\nHost: a\r\n", b""),
        (b"GET /v1/none HTTP/1.1\r\nHost: a\r\n\r\nGET /v1/fl", b"HTTP/1.1 404 Not Found"),
        (b"POST /v1/fleet/scale HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n{", b"HTTP/1.1 408 Request Timeout"),
    ],
)
def test_a_caller_that_says_only_half_is_given_up(said: bytes, heard: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uvicorn_server, "HEAD_TIMEOUT_S", 0.2)
    monkeypatch.setattr(body_limit, "BODY_TIMEOUT_S", 0.2)

    async def run() -> bytes:
        port = AdminServer(AdminApiConfig(), 0)
        async with operating(port, parts_of(FakeFleet())), asyncio.timeout(20):
            reader, writer = await asyncio.open_connection("127.0.0.1", port.port)
            writer.write(said)
            try:
                return await reader.read()
            finally:
                writer.close()

    assert asyncio.run(run()).split(b"\r\n")[0] == heard


def test_the_token_comes_from_the_file_or_is_a_new_one(tmp_path: Any) -> None:
    assert read_token(AdminApiConfig()) != read_token(AdminApiConfig())
    file = tmp_path / "token"
    file.write_text("sixteen-characters\n")
    assert read_token(AdminApiConfig(token_file=str(file))) == "sixteen-characters"
    for text, reason in (("short", "at least 16 characters"), ("two words that are long", "one word")):
        file.write_text(text)
        with pytest.raises(ValueError, match=reason):
            read_token(AdminApiConfig(token_file=str(file)))
    with pytest.raises(ValueError, match="No such file"):
        read_token(AdminApiConfig(token_file=str(tmp_path / "missing")))


def test_no_start_waits_for_the_web_framework() -> None:
    """It is imported when the cluster is up, beside the loop."""
    program = "import slipstream.cluster.driver.driver, sys; print({'fastapi', 'uvicorn', 'torch'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", program], capture_output=True, text=True, timeout=60)
    assert done.stdout == "set()\n", done.stderr


def test_a_command_asks_for_what_was_typed_and_understands_a_stranger() -> None:
    asked = []

    def answer_as_a_stranger(server: socket.socket) -> None:
        caller, _ = server.accept()
        with caller:
            asked.append(caller.recv(4096).split(b"\r\n")[0])
            caller.sendall(b"220 mail.example.com ESMTP\r\n")

    with socket.create_server(("127.0.0.1", 0)) as server:
        stranger = threading.Thread(target=answer_as_a_stranger, args=(server,))
        stranger.start()
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        result = CliRunner().invoke(main, ["drain", "a b/ç?\udcff", "--url", url, "--token", "t"])
        stranger.join()
    assert asked == [b"POST /v1/workers/a%20b%2F%C3%A7%3F%FF/drain HTTP/1.1"]
    assert (result.exit_code, isinstance(result.exception, SystemExit)) == (1, True)
    assert f"the admin API at {url} cannot be reached: 220 mail.example.com" in result.output


def test_a_role_that_is_given_two_sizes_is_refused() -> None:
    done = CliRunner().invoke(main, ["scale", "decode=1", "prefill=1", "decode=2"])
    assert done.exit_code == 2
    assert "decode is given twice: decode=1 prefill=1 decode=2" in done.stderr
