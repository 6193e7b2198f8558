"""`slipstream keys`: add, list and remove the keys in a file. A running router picks up changes."""

from __future__ import annotations

import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from slipstream.router.access.api_key import Rates, digest_of, new_secret
from slipstream.router.access.entry_list import KeyFileError, edit_file
from slipstream.router.access.key_file import RATES, add_key, read_keys, remove_key

KEY_FILE = click.argument("file", type=click.Path(dir_okay=False, path_type=Path))


@click.group("keys")
def keys_command() -> None:
    """Add, list and remove API keys in a file (router.access.keys_file)."""


@keys_command.command("add")
@KEY_FILE
@click.argument("name")
@click.option(
    "--tenant", help="The tenant that the key belongs to. Tenants share the cluster by tokens. Default: the name."
)
@click.option("--weight", type=float, help="The tenant's share, relative to the others. Default: 1.")
@click.option("--requests-per-minute", type=float)
@click.option("--tokens-per-minute", type=float, help="Of prompt and output together.")
@click.option("--max-concurrent", type=int, help="Sequences at a time; each choice of an answer is one.")
@click.option("--max-priority", type=int, help="The most urgent (lowest) priority that it may ask for. Default: 0.")
@click.option("--model", "models", multiple=True, help="Only this model; may be given several times.")
@click.option(
    "--limit",
    "limits",
    multiple=True,
    type=(str, click.Choice(RATES), float),
    metavar="MODEL WHAT NUMBER",
    help=f"A limit for one model, beside those for all; WHAT is {' or '.join(RATES)}. May be given several times.",
)
@click.option("--expires", help="A date, or a date and time, as in 2027-01-31T12:00:00Z.")
@click.option(
    "--admin",
    is_flag=True,
    help="May see metrics, status, requests and usage of all keys, and load tensor models, which run code.",
)
@click.option(
    "--shared-cache", is_flag=True, help="Shares cached KV with other tenants whose keys have this option, too."
)
def add_command(
    file: Path, name: str, models: tuple[str, ...], limits: tuple[tuple[str, str, float], ...], **options: Any
) -> None:
    """Make a key called NAME, and show its secret, this once."""
    secret = new_secret()
    entry: dict[str, Any] = {"name": name, "sha256": digest_of(secret.encode()).hex()}
    entry |= {field: value for field, value in options.items() if value is not None and value is not False}
    if models:
        entry["models"] = list(models)
    for model, what, number in limits:
        of_model = entry.setdefault("limits", {}).setdefault(model, {})
        of_model[what] = int(number) if number.is_integer() else number
    try:
        edit_file(file, lambda text: add_key(text or "", entry))
    except (OSError, UnicodeDecodeError, KeyFileError) as error:
        fail(file, error)
    click.echo(secret)
    click.echo(
        f"The key {name} is in {file}. This is its secret; it is stored nowhere and cannot be shown again.", err=True
    )


@keys_command.command("list")
@KEY_FILE
def list_command(file: Path) -> None:
    """Show the keys, but not their secrets, which are not stored."""
    try:
        keys = read_keys(file)
    except KeyFileError as error:
        fail(file, error)
    rows: list[tuple[str, ...]] = [
        ("NAME", "TENANT", "WEIGHT", "REQUESTS/MIN", "TOKENS/MIN", "CONCURRENT", "PRIORITY", "MODELS", "")
    ]
    for key in keys:
        notes = [word for word, is_so in (("admin", key.admin), ("shared cache", key.shared_cache)) if is_so]
        if key.expires_s is not None:
            verb = "expired" if key.expires_s <= time.time() else "expires"
            notes.append(f"{verb} {datetime.fromtimestamp(key.expires_s, UTC):%Y-%m-%d %H:%M} UTC")
        notes += [f"{model}: {described(rates)}" for model, rates in sorted(key.limits.items())]
        limits = (key.requests_per_minute, key.tokens_per_minute, key.max_concurrent)
        shown = ["-" if limit is None else f"{limit:.10g}" for limit in limits]
        models = ", ".join(sorted(key.models)) if key.models is not None else "all"
        rows.append((key.name, key.tenant, f"{key.weight:g}", *shown, str(key.max_priority), models, ", ".join(notes)))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


@keys_command.command("remove")
@KEY_FILE
@click.argument("name")
def remove_command(file: Path, name: str) -> None:
    """Remove the key called NAME from the file."""
    try:
        edit_file(file, lambda text: remove_key(text or "keys: []", name))
    except (OSError, UnicodeDecodeError, KeyFileError) as error:
        fail(file, error)
    click.echo(f"The key {name} has been removed from {file}; running requests finish.", err=True)


def described(rates: Rates) -> str:
    """The limits of a key for one model."""
    limits = {
        "requests/min": rates.requests_per_minute,
        "tokens/min": rates.tokens_per_minute,
        "concurrent": rates.max_concurrent,
    }
    return " ".join(f"{limit:.10g} {what}" for what, limit in limits.items() if limit is not None)


def fail(file: Path, error: Exception) -> Any:
    """Prints the error and exits."""
    text = str(error)
    click.echo(f"error: {text if str(file) in text else f'{file}: {text}'}", err=True)
    sys.exit(2)
