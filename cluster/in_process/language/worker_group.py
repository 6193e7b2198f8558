"""The workers of one language model, as processes of this program."""

from __future__ import annotations

import asyncio
import json
import logging
import os
from dataclasses import asdict
from functools import partial
from pathlib import Path

from slipstream.cluster.config.cluster_config import RestartConfig
from slipstream.cluster.supervisor.restart_policy import Restart, RestartPolicy
from slipstream.router.process.module_command import module_command
from slipstream.workers.config.worker_config import WorkerConfig
from slipstream.workers.instances.instance_process import InstanceProcess
from slipstream.workers.instances.launch_command import LaunchCommand

MODULE = "slipstream.workers.main"

log = logging.getLogger(__name__)


class WorkerGroup:
    """`start`; `served` once they have come up; `stop`. From then on one that dies is started again. If one dies
    before, `failed` has the reason. `folder` is for their configurations, in which the token is, and their logs."""

    def __init__(self, configs: tuple[WorkerConfig, ...], folder: Path) -> None:
        self._loop = asyncio.get_running_loop()
        self._folder = folder
        self._configs = {config.name: config for config in configs}
        self._policies = {name: RestartPolicy(RestartConfig()) for name in self._configs}
        self._processes: dict[str, InstanceProcess] = {}
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._is_stopping = False
        self._has_ended = asyncio.Event()
        self.failed: asyncio.Future[str] = self._loop.create_future()

    def start(self) -> None:
        for name in self._configs:
            self._start(name)

    def served(self) -> None:
        for policy in self._policies.values():
            policy.cluster_ready()
            policy.up(self._loop.time())

    async def stop(self, grace_s: float) -> None:
        """Lets them drain, and kills those that are left after `grace_s`."""
        self._is_stopping = True
        for timer in self._timers.values():
            timer.cancel()
        for process in self._processes.values():
            process.kill_after(grace_s)
            process.terminate()
        if self._processes:
            await self._has_ended.wait()

    def _start(self, name: str) -> None:
        path = self._folder / f"{name.rpartition('/')[2]}.json"
        argv = module_command(MODULE, "--config", str(path), "--parent", str(os.getpid()))
        command = LaunchCommand(argv, dict(os.environ))
        try:
            path.write_text(json.dumps(asdict(self._configs[name])), encoding="utf-8")
            self._processes[name] = InstanceProcess(command, path.with_suffix(".log"), partial(self._ended, name))
        except OSError as error:
            self._died(name, f"no process can be started: {error.strerror or error}")

    def _restart(self, name: str) -> None:
        self._policies[name].up(self._loop.time())  # one that lives for a while has come up
        self._start(name)

    def _ended(self, name: str, returncode: int) -> None:
        process = self._processes.pop(name)
        if self._is_stopping:
            if not self._processes:
                self._has_ended.set()
            return
        lines = process.log_tail.strip().splitlines()
        reason = lines[-1] if lines else f"its process has ended with exit code {returncode}"
        self._died(name, reason)

    def _died(self, name: str, reason: str) -> None:
        log.warning("worker %s has ended: %s", name, reason)
        step = self._policies[name].died(self._loop.time(), reason)
        if isinstance(step, Restart):
            self._timers[name] = self._loop.call_at(step.at_s, self._restart, name)
        elif not self.failed.done():
            self.failed.set_result(f"worker {name}: {step.reason}")
