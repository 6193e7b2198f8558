"""An instance host as a plain program, for machines without Ray and for tests:

    python -m slipstream.workers.instances.host_main --config host.yaml

The file (YAML or JSON) has the fields of `InstanceHostConfig`. SIGTERM and SIGINT let the instances finalize; a second
signal kills them. Exit codes: 0 after that, 1 if the router refuses the host or a certificate cannot be used, 2 for bad
settings.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path

import click
import uvloop
import yaml
from pydantic import TypeAdapter, ValidationError

from slipstream.router.process.log_format import log_to_stderr
from slipstream.router.tls.tls_files import TlsFileError
from slipstream.workers.instances.host_config import InstanceHostConfig
from slipstream.workers.instances.instance_host import InstanceHost
from slipstream.workers.instances.router_session import HostRefused


@click.command()
@click.option("--config", "path", type=click.Path(exists=True, dir_okay=False, path_type=Path), required=True)
def main(path: Path) -> None:
    """Starts and watches instances of models, as the router commands."""
    try:
        config = TypeAdapter(InstanceHostConfig).validate_python(yaml.safe_load(path.read_text()))
    except (ValidationError, yaml.YAMLError, UnicodeDecodeError) as error:
        raise click.UsageError(f"{path}: {error}") from error
    log_to_stderr("instances")
    try:
        uvloop.run(run(config))
    except (HostRefused, OSError, TlsFileError) as error:
        print(f"error: {config.name}: {error}", file=sys.stderr)
        sys.exit(1)


async def run(config: InstanceHostConfig) -> None:
    host = InstanceHost(config)
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, host.stop)
    await host.run()


if __name__ == "__main__":
    main()
