"""`slipstream tokens`: add, list and remove the admin API's tokens in a file, and show that of a running cluster.

A running driver picks up changes of the file."""

from __future__ import annotations

import secrets
import sys
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import click

from slipstream.cluster.access.token_file import ROLES, parse_tokens, read_tokens
from slipstream.cluster.admin_api.client.cluster_choice import NAME, takes_name
from slipstream.cluster.state.clusters_here import cluster_here
from slipstream.cluster.terminal import console
from slipstream.cluster.terminal.command_error import CommandError, exit_on_command_error
from slipstream.router.access.entry_list import KeyFileError, add_entry, edit_file, remove_entry

TOKEN_FILE = click.argument("file", type=click.Path(dir_okay=False, path_type=Path))


@click.group("tokens")
def tokens_command() -> None:
    """Add, list and remove tokens of the admin API in a file (admin_api.tokens_file), or show a cluster's own one."""


@tokens_command.command("add")
@TOKEN_FILE
@click.argument("name")
@click.option("--role", type=click.Choice(ROLES), default="operator", show_default=True, help="read: no changes.")
def add_command(file: Path, name: str, role: str) -> None:
    """Make a token called NAME, and show it, this once."""
    token = secrets.token_urlsafe(32)
    entry = {"name": name, "sha256": sha256(token.encode()).hexdigest(), "role": role}
    _edit(file, lambda text: add_entry(text or "", "tokens", entry, parse_tokens))
    click.echo(token)
    click.echo(f"The token {name} is in {file}. It is stored nowhere else and cannot be shown again.", err=True)


@tokens_command.command("list")
@TOKEN_FILE
def list_command(file: Path) -> None:
    """Show the names and roles of the tokens."""
    try:
        tokens = read_tokens(file)
    except KeyFileError as error:
        console.error(str(error))
        sys.exit(1)
    width = max((len(token.name) for token in tokens), default=0)
    for token in tokens:
        click.echo(f"{token.name.ljust(width)}  {token.role}")


@tokens_command.command("remove")
@TOKEN_FILE
@click.argument("name")
def remove_command(file: Path, name: str) -> None:
    """Remove the token called NAME from the file."""
    _edit(file, lambda text: remove_entry(text or "tokens: []", "tokens", name, parse_tokens))


@tokens_command.command("show")
@takes_name
@NAME
def show_command(name: str | None) -> None:
    """Print the token of a cluster on this machine, with which its page and other programs may change it."""
    with exit_on_command_error():
        state = cluster_here(name, "this command on its host")
        if not state.operator_url:
            raise CommandError(f"{state.name} serves no admin API (admin_api.port is null in {state.config})")
        click.echo(state.operator_token)


def _edit(file: Path, edit: Callable[[str | None], str]) -> None:
    try:
        edit_file(file, edit)
    except (OSError, UnicodeDecodeError, KeyFileError) as error:
        text = str(error)
        console.error(text if text.startswith(str(file)) else f"{file}: {text}")
        sys.exit(1)
