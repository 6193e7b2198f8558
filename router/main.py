"""The router as a plain program, for machines without Ray, for tests and for measurements:

    python -m slipstream.router.main --config router.yaml

The file (YAML or JSON) has the fields of `RouterProgram`. Once the router listens, it prints one line of JSON that says
where: `{"http": "http://127.0.0.1:8000", "workers": "127.0.0.1:40123"}`. SIGTERM and SIGINT drain it, the former after
`drain_grace_s`, in which load balancers notice; a second signal ends it at once.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import click
import uvloop
import yaml
from pydantic import TypeAdapter, ValidationError

from slipstream.router.catalog.served_model import ModelSource
from slipstream.router.config.repository_config import RepositoryConfig
from slipstream.router.config.router_config import FORMER_NAMES, ContentFormat, DispatchConfig, RouterConfig
from slipstream.router.model_files.sampling_defaults import GenerationConfigUse
from slipstream.router.parsers.detection import AUTO
from slipstream.router.parsers.parser_names import check_parsers
from slipstream.router.process.addresses import RepositoryAddresses
from slipstream.router.process.gc_tuning import spare_garbage_collector
from slipstream.router.process.log_format import log_to_stderr
from slipstream.router.router import Router
from slipstream.router.router_models import expected_at_start


@dataclass(frozen=True, slots=True)
class ModelProgram:
    """One of several models: `name` and `aliases` are what clients ask for, `model_dir` holds its tokenizer. `dispatch`
    null: that of `router`. Where models divide the memory of a host, `weight` is what this one counts."""

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

    name: str
    model_dir: Path
    aliases: tuple[str, ...] = ()
    has_prefill_pool: bool = False
    generation_config: GenerationConfigUse = "auto"
    chat_template_content_format: ContentFormat = "auto"
    dispatch: DispatchConfig | None = None
    weight: float = 1.0
    tool_call_parser: str = AUTO
    reasoning_parser: str = AUTO

    def __post_init__(self) -> None:
        check_parsers(self.tool_call_parser, self.reasoning_parser)

    def source(self) -> ModelSource:
        return ModelSource(
            self.name,
            self.model_dir,
            self.generation_config,
            self.chat_template_content_format,
            aliases=self.aliases,
            dispatch=self.dispatch,
            has_prefill_pool=self.has_prefill_pool,
            weight=self.weight,
            parsers=check_parsers(self.tool_call_parser, self.reasoning_parser),
        )


@dataclass(frozen=True, slots=True)
class RouterProgram:
    """`model` is the name that clients ask for, `model_dir` holds its tokenizer; several models are listed as `models`
    instead, and beside a `repository` there may be none. `token` is the secret that workers and instance hosts must
    present. `keeper` is the Unix socket of a `SocketHolder`, which holds what is to outlive this router. One that
    `is_ending` only continues the existing connections. `kv_budget_bytes` is the memory that the workers of a host
    divide for their KV pages. `instances_path` is where the router listens for instances on its host; null: nowhere.
    """

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

    token: str
    model: str = ""
    model_dir: Path | None = None
    has_prefill_pool: bool = False
    drain_s: float = 30.0
    drain_grace_s: float = 2.0  # after SIGTERM, before that: new requests are still served, readiness is 503
    keeper: Path | None = None
    is_ending: bool = False
    generation_config: GenerationConfigUse = "auto"
    chat_template_content_format: ContentFormat = "auto"
    models: tuple[ModelProgram, ...] = ()
    repository: RepositoryConfig = field(default_factory=RepositoryConfig)
    instances_path: Path | None = None
    router: RouterConfig = field(default_factory=RouterConfig)
    kv_budget_bytes: int | None = None
    tool_call_parser: str = AUTO
    reasoning_parser: str = AUTO

    def __post_init__(self) -> None:
        check_parsers(self.tool_call_parser, self.reasoning_parser)
        if bool(self.models) == bool(self.model) and (self.model or not self.repository.is_on):
            raise ValueError(f"either model or models must be given, got {self.model!r} and {len(self.models)} models")
        if self.model and self.model_dir is None:
            raise ValueError(f"model_dir must be given beside model {self.model!r}, got None")

    def sources(self) -> list[ModelSource]:
        """The models."""
        if self.model_dir is None:
            return [model.source() for model in self.models]
        only = ModelProgram(
            self.model,
            self.model_dir,
            has_prefill_pool=self.has_prefill_pool,
            generation_config=self.generation_config,
            chat_template_content_format=self.chat_template_content_format,
            tool_call_parser=self.tool_call_parser,
            reasoning_parser=self.reasoning_parser,
        )
        return [only.source()]


@click.command()
@click.option("--config", "path", type=click.Path(exists=True, dir_okay=False, path_type=Path), required=True)
def main(path: Path) -> None:
    """Runs a router until it is drained."""
    try:
        program = TypeAdapter(RouterProgram).validate_python(_settings(path))
    except (ValidationError, yaml.YAMLError, UnicodeDecodeError) as error:
        raise click.UsageError(f"{path}: {error}") from error
    log_to_stderr("router")
    try:
        uvloop.run(serve(program))
    except (OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)


def _settings(path: Path) -> Any:
    """What the file says, with the present names of the router's settings. Raises UnicodeDecodeError and YAMLError."""
    settings = yaml.safe_load(path.read_text())
    router = settings.get("router", {}) if isinstance(settings, dict) else {}
    for former, name in FORMER_NAMES.items() if isinstance(router, dict) else ():
        if former in router and name not in router:
            print(f"warning: {path}: router.{former} is called router.{name} now", file=sys.stderr)
            router[name] = router.pop(former)
    return settings


async def serve(program: RouterProgram) -> None:
    """Runs the router until a signal has drained it. Raises OSError if it cannot listen, and FileNotFoundError or
    ValueError if the model directory has no usable tokenizer."""
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[signal.Signals] = loop.create_future()

    def end(number: signal.Signals) -> None:
        if ended.done():
            os._exit(1)
        ended.set_result(number)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, end, number)
    sources = program.sources()
    router = Router(
        program.router,
        sources,
        program.token,
        holder_path=program.keeper,
        is_ending=program.is_ending,
        kv_budget_bytes=program.kv_budget_bytes,
        repository=program.repository,
        instances_path=program.instances_path,
    )
    addresses = await router.start()
    if program.keeper is not None:
        router.models.expect({source.name: expected_at_start(source) for source in sources})
        await router.take_over()
    spare_garbage_collector()
    http, workers, admin = addresses.http, addresses.workers, addresses.admin
    scheme = "https" if program.router.http.tls.is_on else "http"
    listening = {"http": f"{scheme}://{http}", "workers": str(workers)}
    if admin is not None:
        listening["admin"] = f"http://{admin}"
    if addresses.repository is not None:
        listening |= listening_for(addresses.repository)
    print(json.dumps(listening), flush=True)
    if await router.serve_until(ended) == signal.SIGTERM and program.drain_grace_s:
        router.leave()
        await asyncio.sleep(program.drain_grace_s)
    await router.drain(program.drain_s)
    await router.stop()


def listening_for(repository: RepositoryAddresses) -> dict[str, str]:
    """The endpoints of a repository, by their names in the line about where the router listens."""
    listening = {"instances": str(repository.instances)}
    if repository.grpc is not None:
        listening["grpc"] = str(repository.grpc)
    if repository.metrics is not None:
        listening["tensor_metrics"] = f"http://{repository.metrics}"
    return listening


if __name__ == "__main__":
    main()
