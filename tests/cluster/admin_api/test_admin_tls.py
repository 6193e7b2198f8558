"""The admin API over TLS: a real port, certificates of a test's own authority, and the commands' client."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from slipstream.cluster.access.token_file import AdminTokens
from slipstream.cluster.admin_api.admin_server import AdminServer, operating
from slipstream.cluster.admin_api.client.admin_client import AdminClient, UnreachableError, client_of
from slipstream.cluster.admin_api.driver_parts import DriverParts
from slipstream.cluster.cli import main
from slipstream.cluster.config.cluster_config import AdminApiConfig
from slipstream.cluster.state.cluster_state import ClusterState
from slipstream.cluster.state.state_file import read, write
from slipstream.cluster.terminal.command_error import CommandError
from slipstream.router.tls import server_tls
from slipstream.router.tls.admin_tls import AdminTlsConfig
from slipstream.router.tls.client_tls import ClientTlsConfig
from slipstream.router.tls.tls_files import TlsFileError
from tests.support.cluster.fake_fleet import FakeFleet, FakeFleets, FakeRouterView
from tests.support.router.authority import Authority

TOKEN = "a-token-for-the-tests"
STATE = ClusterState("demo", 1, 0.0, "/c.yaml", "m")


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls") / "ca")


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls") / "stranger")


def served_as(authority: Authority, name: str = "driver", *, mutual: bool = False, days: int = 2) -> AdminTlsConfig:
    """The settings of a port whose certificate has this name, which is that of its files, too."""
    files = authority.issue(name, days=days)
    clients = files.ca_file if mutual else None
    return AdminTlsConfig(files.cert_file, files.key_file, files.ca_file, client_ca_file=clients)


@contextlib.asynccontextmanager
async def serving(tls: AdminTlsConfig) -> AsyncIterator[ClusterState]:
    """The state file of a cluster that serves its admin API like this."""
    port = AdminServer(AdminApiConfig(tls=tls), 0)
    parts = DriverParts(FakeFleets({"m": FakeFleet()}), STATE, FakeRouterView({}), AdminTokens(TOKEN))
    async with operating(port, parts):
        url = f"{'https' if tls.is_on else 'http'}://127.0.0.1:{port.port}"
        yield replace(STATE, operator_url=url, operator_token=TOKEN, operator_tls=tls.caller)


def ask(tls: AdminTlsConfig, caller: ClientTlsConfig | None = None) -> int:
    """How many groups the fleet has, as a command on this machine is told, or one that uses the files of `caller`.
    Raises CommandError."""

    async def run() -> int:
        async with serving(tls) as state:
            if caller is not None:
                state.operator_tls = caller
            return len((await asyncio.to_thread(client_of(state).get, "/v1/fleet"))["members"])

    return asyncio.run(run())


@pytest.mark.parametrize("mutual", [True, False])
def test_a_command_on_this_machine_uses_the_files_of_the_configuration(authority: Authority, mutual: bool) -> None:
    assert ask(served_as(authority, mutual=mutual)) > 0


def test_a_command_presents_the_certificate_for_callers_if_there_is_one(
    authority: Authority, stranger: Authority
) -> None:
    client, ours = stranger.issue("client"), served_as(authority)
    tls = replace(ours, client_ca_file=client.ca_file)
    with pytest.raises(UnreachableError):
        ask(tls)
    assert ask(replace(tls, client_cert_file=client.cert_file, client_key_file=client.key_file)) > 0


def test_a_server_with_another_name_is_trusted_only_as_server_name(authority: Authority) -> None:
    files = authority.issue("named", "DNS:admin.example")
    tls = AdminTlsConfig(files.cert_file, files.key_file, files.ca_file)
    with pytest.raises(UnreachableError, match=r"not valid for '127\.0\.0\.1'"):
        ask(tls)
    assert ask(replace(tls, server_name="admin.example")) > 0


def test_a_server_of_another_authority_is_not_asked(authority: Authority, stranger: Authority) -> None:
    with pytest.raises(UnreachableError, match="unable to get local issuer certificate"):
        ask(served_as(authority), ClientTlsConfig(str(stranger.cert)))
    with pytest.raises(UnreachableError, match="CERTIFICATE_VERIFY_FAILED"):
        ask(served_as(authority), ClientTlsConfig())


def test_a_server_whose_certificate_has_expired_is_not_asked(authority: Authority) -> None:
    with pytest.raises(UnreachableError, match="certificate has expired"):
        ask(served_as(authority, "late", days=-1))


def test_a_caller_without_a_good_certificate_is_refused_where_one_is_asked_for(
    authority: Authority, stranger: Authority
) -> None:
    tls = served_as(authority, mutual=True)
    with pytest.raises(UnreachableError, match="perhaps it asks for a certificate"):
        ask(tls, ClientTlsConfig(str(authority.cert)))
    for files in (stranger.issue("stranger"), authority.issue("late-client", days=-1)):
        with pytest.raises(UnreachableError):
            ask(tls, ClientTlsConfig(str(authority.cert), files.cert_file, files.key_file))


def test_a_plain_client_gets_nothing_from_a_port_with_tls(authority: Authority) -> None:
    async def run() -> None:
        async with serving(served_as(authority)) as state:
            plain = AdminClient(state.operator_url.replace("https:", "http:"), TOKEN)
            with pytest.raises(CommandError):
                await asyncio.to_thread(plain.get, "/v1/fleet")

    asyncio.run(run())


def test_a_renewed_certificate_is_served_without_a_restart_and_a_broken_one_is_not(
    authority: Authority, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(server_tls, "LOOK_EVERY_S", 0.01)
    caplog.set_level("INFO")
    tls = served_as(authority, "renewed")
    assert tls.cert_file is not None
    cert = Path(tls.cert_file)

    async def run() -> None:
        async with serving(tls) as state:
            port = int(state.operator_url.rpartition(":")[2])

            async def serial() -> str:
                _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=tls.caller.context())
                number: str = writer.get_extra_info("peercert")["serialNumber"]
                writer.close()
                with contextlib.suppress(ssl.SSLError, ConnectionError):
                    await writer.wait_closed()
                return number

            async def until(said: str) -> None:
                async with asyncio.timeout(30):
                    while said not in caplog.text:
                        await asyncio.sleep(0.01)
                caplog.clear()

            first = await serial()
            authority.issue("renewed")
            await until("certificate was taken up anew")
            second = await serial()
            assert second != first
            await asyncio.to_thread(cert.write_text, "no certificate")
            await until("certificate stays as it was")
            assert await serial() == second
            authority.issue("renewed")
            await until("certificate was taken up anew")
            assert await serial() not in (first, second)

    asyncio.run(run())


def test_a_command_for_a_cluster_elsewhere_takes_the_files_as_options_or_from_the_environment(
    authority: Authority, tmp_path: Path
) -> None:
    client = authority.issue("operator")

    async def run() -> None:
        async with serving(served_as(authority, mutual=True)) as state:
            common = ["planner", "--url", state.operator_url, "--token", TOKEN]
            files = ["--ca-file", client.ca_file, "--cert-file", client.cert_file, "--key-file", client.key_file]

            async def call(*options: str | None, env: dict[str, str | None] | None = None) -> str:
                arguments = [*common, *(option or "" for option in options)]
                done = await asyncio.to_thread(CliRunner().invoke, main, arguments, env=env)
                return done.output

            connected = await call(*files)
            assert "cannot be reached" not in connected
            names = ("CA_FILE", "CERT_FILE", "KEY_FILE")
            env = {f"SLIPSTREAM_OPERATOR_{name}": file for name, file in zip(names, files[1::2], strict=True)}
            assert await call(env=env) == connected
            assert "cannot be reached" in await call("--ca-file", client.ca_file)
            assert "key_file must be given beside cert_file" in await call("--cert-file", client.cert_file)
            missing = await call("--ca-file", str(tmp_path / "none.pem"))
            assert f"cannot be asked: ca_file: {tmp_path / 'none.pem'}: No such file" in missing

    asyncio.run(run())


def test_the_state_file_has_what_commands_need_and_the_api_does_not_show_it(tmp_path: Path) -> None:
    tls = ClientTlsConfig("/ca.pem", "/c.pem", "/c.key", "admin.example")
    write(tmp_path / "demo.json", replace(STATE, operator_tls=tls))
    found = read(tmp_path / "demo.json")
    assert found is not None
    assert found.operator_tls == tls
    assert "operator_tls" not in found.public()


def test_settings_that_do_not_fit_together_name_the_key() -> None:
    for settings, complaint in (
        ({"cert_file": "a"}, "key_file must be given beside cert_file, got None"),
        ({"key_file": "a"}, "cert_file must be given beside key_file, got None"),
        ({"client_ca_file": "a"}, "cert_file must be given beside client_ca_file, got None"),
        ({"cert_file": "a", "key_file": "b", "client_cert_file": "c"}, "client_key_file must be given beside"),
        ({"cert_file": ""}, "cert_file must not be empty"),
    ):
        with pytest.raises(ValueError, match=complaint):
            AdminTlsConfig(**settings)


def test_files_that_cannot_be_used_keep_the_port_from_opening(authority: Authority, tmp_path: Path) -> None:
    tls = served_as(authority)
    for bad, complaint in (
        (replace(tls, cert_file=str(tmp_path / "none")), r"cert_file: .*none: No such file"),
        (replace(tls, key_file=authority.issue("other").key_file), r"key_file: .*other\.key: not the key of"),
        (replace(tls, client_ca_file=tls.key_file), r"client_ca_file: .*driver\.key: there is no CERTIFICATE"),
    ):
        with pytest.raises(TlsFileError, match=complaint):
            AdminServer(AdminApiConfig(tls=bad), 0)
