"""A router and mock workers that answer by scripts, as programs of the project's environment. It needs nothing but
Python, because the clients that it is for run in environments of their own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
PYTHON = ROOT / ".venv/bin/python"
DEMO = ROOT / "models/slipstream-demo"
SECRET = "secret"
START_TIMEOUT_S = 60.0
END_TIMEOUT_S = 30.0
# Agents send long prompts: a system prompt, and a description of each tool.
PROFILE = ("max_model_len=500000", "max_queued_tokens=2000000")


@dataclass(frozen=True)
class ScriptedModel:
    """`rules` are those of a script (docs/reference/mock_worker.md). A token a millisecond gives streams events.
    `num_workers` processes have `workers_each`."""

    name: str
    rules: Sequence[Mapping[str, Any]]
    model_dir: Path = DEMO
    num_workers: int = 1
    workers_each: int = 1
    step_s: float = 0.001


@dataclass(frozen=True)
class ScriptedSite:
    """A router's URL, and the workers' processes in the order of the models. `exchange_router` kills the router with
    kill -9, calls what it is given, and starts another one at the same ports."""

    url: str
    workers: list[subprocess.Popen[str]]
    exchange_router: Callable[[Callable[[], object]], None]

    @property
    def api(self) -> str:
        return f"{self.url}/v1"


@contextmanager
def scripted_router(
    folder: Path,
    models: Sequence[ScriptedModel],
    *,
    settings: Mapping[str, Any] | None = None,
    headers: Mapping[str, str] | None = None,
    holder: Path | None = None,
) -> Iterator[ScriptedSite]:
    """A router and workers for each model. What the programs say is in `folder`. `settings` are further sections of the
    router's; `headers` let the site be asked whether it is ready. `holder` is the path of a socket holder."""
    sections: dict[str, Any] = {
        "http": {"port": 0},
        "worker_port": 0,
        "admin": {"port": None},
        "store": {"directory": str(folder / "store")},
    }
    for name, section in (settings or {}).items():
        sections[name] = sections.get(name, {}) | section
    program = {
        "models": [{"name": model.name, "model_dir": str(model.model_dir)} for model in models],
        "token": SECRET,
        "drain_s": 5,
        "drain_grace_s": 0,
        "router": sections,
        "keeper": None if holder is None else str(holder),
    }
    with ExitStack() as programs:
        router, listening = _router(folder, program, programs)

        def exchange_router(meanwhile: Callable[[], object]) -> None:
            nonlocal router
            router.kill()
            router.wait()
            meanwhile()
            sections["http"]["port"], sections["worker_port"] = (
                int(listening[name].rpartition(":")[2]) for name in ("http", "workers")
            )
            router, _ = _router(folder, program, programs)

        site = ScriptedSite(listening["http"], [], exchange_router)
        for model in models:
            for number in range(model.num_workers):
                worker = _worker(folder, f"{model.name}-{number}", model, listening["workers"])
                site.workers.append(programs.enter_context(worker))
        _wait_until_ready(site, [model.name for model in models], folder, headers or {})
        yield site


def _router(
    folder: Path, program: Mapping[str, Any], programs: ExitStack
) -> tuple[subprocess.Popen[str], dict[str, str]]:
    """The process, and where it listens."""
    path, log = folder / "router.json", folder / "router.txt"
    path.write_text(json.dumps(program))
    router = programs.enter_context(_program(log, "slipstream.router.main", "--config", str(path)))
    assert router.stdout is not None
    line = router.stdout.readline()
    if not line:
        raise RuntimeError(f"the router did not start: {log.read_text()[-2000:]}")
    return router, json.loads(line)


@contextmanager
def _worker(folder: Path, name: str, model: ScriptedModel, address: str) -> Iterator[subprocess.Popen[str]]:
    script = folder / f"{name}.yaml"
    script.write_text(json.dumps({"tokenizer": str(model.model_dir), "rules": model.rules}))
    options = [option for setting in (*PROFILE, f"step_s={model.step_s}") for option in ("--set", setting)]
    command = ("slipstream.workers.mock.main", "--router", address, "--model", model.name, "--name", name)
    if model.workers_each > 1:
        command += ("--count", str(model.workers_each))
    options += ["--role", "decode", "--script", str(script)]
    with _program(folder / f"{name}.worker.txt", *command, *options) as worker:
        yield worker


@contextmanager
def _program(log: Path, *command: str) -> Iterator[subprocess.Popen[str]]:
    """A module of ours as a process, which is drained in the end."""
    with log.open("w") as errors:
        process = subprocess.Popen(
            [str(PYTHON), "-m", *command],
            cwd=ROOT,
            env={**os.environ, "SLIPSTREAM_WORKER_TOKEN": SECRET},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
        try:
            yield process
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.communicate(timeout=END_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.communicate()
                raise


def _wait_until_ready(site: ScriptedSite, names: list[str], folder: Path, headers: Mapping[str, str]) -> None:
    """Until each model answers: a router is ready with the first of them."""
    end = time.monotonic() + START_TIMEOUT_S
    waiting = list(names)
    while waiting and time.monotonic() < end and all(worker.poll() is None for worker in site.workers):
        body = json.dumps({"model": waiting[0], "prompt": "x", "max_tokens": 1}).encode()
        request = urllib.request.Request(
            f"{site.api}/completions", body, {"Content-Type": "application/json", **headers}
        )
        try:
            with urllib.request.urlopen(request, timeout=10):
                waiting.pop(0)
        except OSError:  # not ready: 503
            time.sleep(0.05)
    if waiting:
        logs = [log.read_text()[-1000:] for log in sorted(folder.glob("*.worker.txt"))]
        raise RuntimeError(f"{waiting[0]} did not become ready: {logs}")
