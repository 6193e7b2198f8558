"""Starts the tracer of a process."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

from slipstream.router.config.router_config import TracingConfig
from slipstream.router.observability.tracing.tracer import Tracer


def begin_tracing(config: TracingConfig, model: str, cleanup: AsyncExitStack) -> Tracer | None:
    """The tracer; None if no collector is configured. `model` is the only one, "" if there are several. `cleanup` sends
    the waiting spans, within `config.timeout_s`."""
    if config.traces_url is None:
        return None
    # Imported only here, as it takes 60 ms and some MiB, which only those with a collector should pay.
    from slipstream.router.observability.tracing.export import OtlpExporter

    exporter = OtlpExporter(config.traces_url, model, queue_traces=config.queue_requests, timeout_s=config.timeout_s)
    exporter.start()
    loop = asyncio.get_running_loop()
    cleanup.push_async_callback(loop.run_in_executor, None, exporter.close, config.timeout_s)
    return Tracer(config.sample_ratio, exporter)
