"""The command `slipstream explain`: asks a router about its requests and shows the answer."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import Any
from urllib.parse import quote, urlsplit

import click

from slipstream.cluster.state.cluster_status import KEY_VARIABLE, direct_opener, shown_key
from slipstream.cluster.state.clusters_here import cluster_here
from slipstream.cluster.terminal.command_error import CommandError, exit_on_command_error
from slipstream.router.observability.explain.explain_infer import infer_listing, infer_text
from slipstream.router.observability.explain.explain_table import listing, table

TIMEOUT_S = 10.0


@click.command("explain")
@click.argument("request_id", metavar="[ID]", required=False)
@click.option("--last", metavar="N", type=click.IntRange(1, 1000), help="List the latest N requests instead.")
@click.option("--tensors", is_flag=True, help="List requests to tensor models.")
@click.option("--name", metavar="CLUSTER", help="The cluster, if several run on this machine.")
@click.option("--url", help="The router's URL, for a cluster on another machine.")
@click.option("--key", envvar=KEY_VARIABLE, help=f"The API key, if the router needs one [env: {KEY_VARIABLE}].")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")
def explain_command(
    request_id: str | None,
    last: int | None,
    tensors: bool,
    name: str | None,
    url: str | None,
    key: str | None,
    as_json: bool,
) -> None:
    """Show where and when a request ran, and why there. ID is the `id` of the answer or its x-request-id; of several
    requests to tensor models with that `id`, the latest is shown. Without ID, the latest requests are listed."""
    if request_id is not None and last is not None:
        raise click.UsageError("give an ID or --last, not both")
    if request_id is not None and tensors:
        raise click.UsageError("give an ID or --tensors, not both")
    if name is not None and url is not None:
        raise click.UsageError("give --name or --url, not both")
    with exit_on_command_error():
        base = url.rstrip("/").removesuffix("/v1") if url is not None else url_of_cluster(name)
        if request_id is None:
            reply = ask(f"{base}/v1/requests?limit={last or 20}{'&kind=infer' * tensors}", key)["data"]
            shown = infer_listing(reply) if tensors else listing(reply)
            text = json.dumps(reply, indent=1) + "\n" if as_json else shown
        else:
            reply = ask(f"{base}/v1/requests/{quote(request_id, safe='', errors='surrogateescape')}/explain", key)
            shown = infer_text(reply) if reply.get("kind") == "infer" else table(reply)
            text = json.dumps(reply, indent=1) + "\n" if as_json else shown
        click.echo(text, nl=False)


def url_of_cluster(name: str | None) -> str:
    """The URL of the cluster called `name` or, without a name, of the only one. Raises CommandError."""
    state = cluster_here(name, "--url http://HOST:PORT")
    if not state.url:
        raise CommandError(f"{state.name} does not listen yet")
    return state.ask_url


def ask(url: str, key: str | None) -> Any:
    """The router's answer. Raises CommandError, with one sentence, if there is none."""
    where = url
    try:
        parts = urlsplit(url)
        where = parts.netloc or url
        opener = direct_opener(is_here=parts.hostname in ("127.0.0.1", "::1", "localhost"))
        with opener.open(urllib.request.Request(url, headers=shown_key(key)), timeout=TIMEOUT_S) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        raise CommandError(refusal(error, where)) from error
    except OSError as error:
        reason = error.reason if isinstance(error, urllib.error.URLError) else error
        raise CommandError(f"the router at {where} cannot be reached: {reason}") from error
    except ValueError as error:  # not a URL, or an answer that is not JSON
        raise CommandError(f"{where} is not a Slipstream router: {error}") from error


def refusal(error: urllib.error.HTTPError, where: str) -> str:
    """The router's error as one sentence, with what can be done about it."""
    try:
        reply = json.load(error)["error"]
        message, code = str(reply["message"]), reply["code"]
    except (ValueError, KeyError, TypeError, OSError):
        return f"{where} answers with status {error.code} and is perhaps no Slipstream router"
    if error.code in (401, 403):
        return f"{message} (--key, or {KEY_VARIABLE} in the environment)"
    if error.code == 404 and code != "request_not_found":
        return f"{message} Perhaps it is served at the port of router.admin: give that with --url."
    return message
