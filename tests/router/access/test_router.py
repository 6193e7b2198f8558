"""A whole router with keys, usage, certificates and an admin port from its configuration."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import subprocess
from pathlib import Path

import orjson
import pytest

from slipstream.router.access.api_key import digest_of
from slipstream.router.access.usage import Account, UsageCounts, UsageFile
from slipstream.router.catalog.served_model import ModelSource
from slipstream.router.config.access_config import AccessConfig
from slipstream.router.config.router_config import AdminConfig, HttpConfig, RouterConfig, TlsConfig
from slipstream.router.http.failover.failover_session import FailoverSession
from slipstream.router.http.failover.holder.socket_holder import SocketHolder
from slipstream.router.process.addresses import Endpoint
from slipstream.router.router import Router
from tests.support.router.fake_cluster import MODEL, MODEL_DIR, run

TOKEN = "token"


@pytest.fixture
def config(tmp_path: Path) -> RouterConfig:
    keys = [("user", ""), ("root", ", admin: true")]
    lines = [f"  - {{name: {name}, sha256: '{digest_of(name.encode()).hex()}'{more}}}\n" for name, more in keys]
    (tmp_path / "keys.yaml").write_text("keys:\n" + "".join(lines))
    cert, key = str(tmp_path / "cert.pem"), str(tmp_path / "key.pem")
    made = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", key, "-out", cert]
    named = ["-days", "2", "-subj", "/CN=router", "-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run(["openssl", "req", "-x509", *made, *named], check=True, capture_output=True)
    return RouterConfig(
        http=HttpConfig(port=0, tls=TlsConfig(cert, key)),
        admin=AdminConfig(port=0),
        access=AccessConfig(str(tmp_path / "keys.yaml"), str(tmp_path / "usage.jsonl")),
    )


async def ask(at: Endpoint, path: str, key: str = "", tls: ssl.SSLContext | None = None) -> tuple[int, bytes]:
    reader, writer = await asyncio.open_connection(at.host, at.port, ssl=tls)
    shown = f"Authorization: Bearer {key}\r\n" if key else ""
    writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{shown}\r\n".encode())
    head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    writer.close()
    await writer.wait_closed()
    return int(head.split()[1]), body


def test_clients_come_by_tls_with_a_key_and_operators_by_a_port_of_their_own(config: RouterConfig) -> None:
    async def main() -> None:
        router = Router(config, [ModelSource(MODEL, MODEL_DIR)], TOKEN)
        addresses = await router.start()
        tls = ssl.create_default_context(cafile=config.http.tls.cert_file)
        try:
            assert addresses.admin is not None
            assert addresses.admin.port not in (0, addresses.http.port)
            assert (await ask(addresses.http, "/v1/models", "user", tls))[0] == 200
            assert (await ask(addresses.http, "/v1/models", "missing", tls))[0] == 401
            assert (await ask(addresses.http, "/health/live", "", tls))[0] == 200
            assert (await ask(addresses.http, "/cluster/status", "root", tls))[0] == 404
            status, body = await ask(addresses.admin, "/cluster/status")
            assert (status, orjson.loads(body)["model"]) == (200, MODEL)
            status, page = await ask(addresses.admin, "/metrics")
            assert status == 200
            assert b"slipstream:api_keys 2.0" in page
            assert b'slipstream:unauthenticated_total{reason="unknown"} 1.0' in page
            assert orjson.loads((await ask(addresses.http, "/v1/usage", "root", tls))[1])["data"] == []
        finally:
            await router.stop()

    run(main)


def test_what_the_previous_router_counts_until_its_end_is_known_to_the_next_one(
    config: RouterConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage_file = config.access.usage_file
    assert usage_file is not None

    def wait_for_its_end(router: Router) -> None:
        UsageFile(Path(usage_file)).append({Account("user", "user", MODEL): UsageCounts(1, 0, 30, 0, 12)})

    monkeypatch.setattr(Router, "_find_session", wait_for_its_end)

    async def main() -> None:
        router = Router(config, [ModelSource(MODEL, MODEL_DIR)], TOKEN)
        addresses = await router.start()
        tls = ssl.create_default_context(cafile=config.http.tls.cert_file)
        try:
            [used] = orjson.loads((await ask(addresses.http, "/v1/usage", "user", tls))[1])["data"]
            assert used["total_tokens"] == 42
        finally:
            await router.stop()

    run(main)


def test_a_router_that_does_not_start_leaves_the_socket_holder(config: RouterConfig) -> None:
    assert config.access.keys_file is not None
    Path(config.access.keys_file).write_text("keys: [{}]")

    async def main() -> None:
        with contextlib.closing(SocketHolder()) as holder:
            with pytest.raises(ValueError, match="keys") as failure:
                await Router(config, [ModelSource(MODEL, MODEL_DIR)], TOKEN, holder_path=holder.path).start()
            following = await asyncio.to_thread(FailoverSession.of_holder, holder.path)  # which has to wait for that
            assert following is not None
            following.farewell()
            del failure

    run(main)


def test_a_broken_file_keeps_the_router_from_starting_and_leaves_nothing_behind(config: RouterConfig) -> None:
    assert config.access.keys_file is not None
    Path(config.access.keys_file).write_text("keys: [{name: a}]")

    async def main() -> None:
        with pytest.raises(ValueError, match="key 'a': sha256"):
            await Router(config, [ModelSource(MODEL, MODEL_DIR)], TOKEN).start()
        assert asyncio.all_tasks() == {asyncio.current_task()}

    run(main)


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (lambda: AdminConfig(port=70_000), "port must be a port number"),
        (lambda: HttpConfig(max_connections=0), "max_connections must be at least 1, got 0"),
        (lambda: HttpConfig(body_timeout_s=0), "body_timeout_s must be over 0 and finite, got 0"),
        (lambda: TlsConfig(key_file="k"), "cert_file must be given beside key_file"),
        (lambda: AccessConfig(keys_file=""), "keys_file must not be empty"),
    ],
)
def test_a_bad_setting_is_an_error_that_names_it(make, complaint) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ValueError, match=complaint):
        make()
