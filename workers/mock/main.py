"""The command `slipstream mock-worker`."""

from __future__ import annotations

import dataclasses
import os
import sys
from pathlib import Path

import click
import uvloop
import yaml
from pydantic import TypeAdapter, ValidationError

from slipstream.router.process.log_format import log_to_stderr
from slipstream.router.protocol.messages import Role
from slipstream.router.tls.link_tls import LinkTlsConfig
from slipstream.workers.mock.mock_profile import MockProfile
from slipstream.workers.mock.mock_program import MockConfig, run_mock_workers
from slipstream.workers.mock.script.script_file import ScriptError, read_script
from slipstream.workers.mock.script.scripted_outputs import ScriptedOutputs
from slipstream.workers.telemetry.worker_report import WorkerFailed

TOKEN_VARIABLE = "SLIPSTREAM_WORKER_TOKEN"
ROLES: dict[str, tuple[Role, ...]] = {"prefill": ("prefill",), "decode": ("decode",), "both": ("prefill", "decode")}


@click.command("mock-worker")
@click.option("--router", required=True, metavar="HOST:PORT", help="Where the router listens for workers.")
@click.option("--role", type=click.Choice(list(ROLES)), default="both", show_default=True)
@click.option("--model", required=True, help="The model name that the router serves.")
@click.option("--model-version", default="", help="The version of the model.")
@click.option("--name", default="mock", show_default=True, help="Prefix of the workers' names.")
@click.option("--count", type=click.IntRange(1), default=1, show_default=True, help="Workers of each role.")
@click.option(
    "--profile",
    "path",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A YAML file with a profile.",
)
@click.option(
    "--script",
    "script",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A YAML file with rules that say what is answered.",
)
@click.option(
    "--tokenizer",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="The model directory whose vocabulary the script's answers are written in.",
)
@click.option("--ca-file", metavar="FILE", help="The router's authority, if it serves workers over TLS.")
@click.option("--cert-file", metavar="FILE", help="The worker's certificate; also --key-file.")
@click.option("--key-file", metavar="FILE", help="The key of --cert-file.")
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="Override a value of the profile.")
def mock_worker_command(
    router: str,
    role: str,
    model: str,
    model_version: str,
    name: str,
    count: int,
    path: Path | None,
    script: Path | None,
    tokenizer: Path | None,
    ca_file: str | None,
    cert_file: str | None,
    key_file: str | None,
    settings: tuple[str, ...],
) -> None:
    """Run workers without a model, which take the time given by a profile and answer with made-up tokens.

    With --script they answer by the rules of a file (docs/reference/mock_worker.md).

    They speak the real protocol over real connections, so that a router can be measured and tested without engines.
    The workers' secret is read from SLIPSTREAM_WORKER_TOKEN. Profile keys: page_tokens, num_pages, max_slots,
    max_model_len, max_queued_tokens, max_step_tokens, vocab_size; prefix_caching (true or false);
    times in seconds: step_s, decode_token_s, prefill_token_s, context_token_s, transfer_s, transfer_page_s,
    start_lease_s.
    """
    host, port = _address(router)
    token = os.environ.get(TOKEN_VARIABLE, "")
    if not token:
        raise click.UsageError(f"the secret of the workers is expected in {TOKEN_VARIABLE}, which is empty")
    profile = _profile(path, settings)
    policy = _policy(script, tokenizer)
    try:
        tls = LinkTlsConfig(cert_file, key_file, ca_file)
    except ValueError as error:
        raise click.UsageError(str(error).replace("_file", "-file")) from error
    configs = [
        MockConfig(f"{name}-{one}-{number}", one, model, host, port, token, profile, model_version, policy, tls)
        for one in ROLES[role]
        for number in range(count)
    ]
    _run(configs)


def _run(configs: list[MockConfig]) -> None:
    log_to_stderr("mock-worker")
    reason: BaseException | None = None
    try:
        uvloop.run(run_mock_workers(configs))
    except* WorkerFailed as failures:
        reason = failures.exceptions[0]
    if reason is not None:  # an exit within `except*` would be shown with a traceback
        print(f"error: {reason}", file=sys.stderr)
        sys.exit(1)


def _address(router: str) -> tuple[str, int]:
    host, _, port = router.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise click.UsageError(f"--router: expected HOST:PORT, got {router!r}")
    return host, int(port)


def _profile(path: Path | None, settings: tuple[str, ...]) -> MockProfile:
    values: dict[str, object] = {}
    try:
        if path is not None:
            values.update(yaml.safe_load(path.read_text()) or {})
        for setting in settings:
            key, separator, value = setting.partition("=")
            if not separator:
                raise click.UsageError(f"--set: expected KEY=VALUE, got {setting!r}")
            values[key] = yaml.safe_load(value)
        known = {field.name for field in dataclasses.fields(MockProfile)}
        for key in values.keys() - known:
            raise click.UsageError(f"{key} is no key of a profile; there are {', '.join(sorted(known))}")
        return TypeAdapter(MockProfile).validate_python(values)
    except (ValidationError, yaml.YAMLError, UnicodeDecodeError, ValueError, TypeError) as error:
        raise click.UsageError(f"{path or '--set'}: {error}") from error


def _policy(path: Path | None, tokenizer: Path | None) -> ScriptedOutputs | None:
    if path is None:
        if tokenizer is not None:
            raise click.UsageError("--tokenizer is only used with --script")
        return None
    try:
        script = read_script(path)
        model_dir = tokenizer or script.tokenizer
        if model_dir is None:
            raise click.UsageError(f"--script: {path} has no tokenizer, and there is no --tokenizer")
        return ScriptedOutputs.load(script, model_dir)
    except ScriptError as error:
        raise click.UsageError(f"--script: {error}") from error


if __name__ == "__main__":
    mock_worker_command()
