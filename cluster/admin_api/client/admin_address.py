"""The options of operators' commands that name the admin API of a cluster on another machine."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import click

from slipstream.cluster.admin_api.client.admin_client import TOKEN_VARIABLE, AdminClient
from slipstream.cluster.terminal.command_error import CommandError
from slipstream.router.tls.client_tls import ClientTlsConfig

URL = click.option("--url", help="The admin API of a cluster on another machine.")
TOKEN = click.option("--token", metavar="TOKEN", help=f"The admin API's token, for --url [env: {TOKEN_VARIABLE}].")


def _file_option(name: str, text: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    variable = f"SLIPSTREAM_OPERATOR_{name.upper()}"
    return click.option(
        f"--{name.replace('_', '-')}", metavar="FILE", envvar=variable, help=f"{text} [env: {variable}]."
    )


CA_FILE = _file_option("ca_file", "For --url https://...: the authorities that are trusted; by default the system's")
CERT_FILE = _file_option("cert_file", "For --url https://...: a certificate to present")
KEY_FILE = _file_option("key_file", "Its key")


@dataclass(frozen=True, slots=True)
class AdminAddress:
    """What the options say. Without `url` it is a cluster on this machine."""

    url: str | None = None
    token: str | None = None
    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None

    @property
    def known_token(self) -> str | None:
        return self.token or os.environ.get(TOKEN_VARIABLE)

    def client(self, reason: str = "") -> AdminClient:
        """Raises CommandError."""
        token = self.known_token
        if not token:
            raise CommandError(f"with --url the admin API's token is needed: --token, or {TOKEN_VARIABLE}")
        try:
            tls = ClientTlsConfig(self.ca_file or None, self.cert_file or None, self.key_file or None)
        except ValueError as error:
            raise CommandError(f"--cert-file and --key-file: {error}") from error
        assert self.url is not None
        return AdminClient(self.url.rstrip("/"), token, reason, tls)


def takes_address(command: Callable[..., None]) -> Callable[..., None]:
    """Decorator that adds the options. The command gets them as `address`."""

    @URL
    @TOKEN
    @CA_FILE
    @CERT_FILE
    @KEY_FILE
    @functools.wraps(command)
    def with_address(
        *,
        url: str | None,
        token: str | None,
        ca_file: str | None,
        cert_file: str | None,
        key_file: str | None,
        **others: Any,
    ) -> None:
        command(address=AdminAddress(url, token, ca_file, cert_file, key_file), **others)

    return with_address
