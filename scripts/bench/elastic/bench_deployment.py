"""One way to use the workers, as a real cluster: started, each worker in its slice, loaded, watched, stopped."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from scripts.bench.elastic.core_slices import Slices
from slipstream.cluster.commands.explain_command import ask
from slipstream.cluster.state import clusters_here
from slipstream.cluster.state.cluster_state import ClusterState
from slipstream.cluster.terminal.command_error import CommandError

START_TIMEOUT_S, END_TIMEOUT_S = 120.0, 40.0
LOOK_S = 1.0


@dataclass(slots=True)
class Watched:
    """`roles`: seconds since the load began, prefill and decode workers that take work. `requests` as `slipstream bench
    --records` writes them, `decisions` those of the planner that changed something."""

    roles: list[tuple[float, int, int]] = field(default_factory=list)
    requests: list[dict[str, Any]] = field(default_factory=list)
    decisions: list[dict[str, Any]] = field(default_factory=list)
    began_unix_s: float = 0.0


class Deployment:
    """`with` starts and stops it."""

    def __init__(self, name: str, settings: Mapping[str, Any], slices: Slices | None) -> None:
        self._slices = slices
        self._folder = Path(tempfile.mkdtemp(prefix=f"elastic-{name}-"))
        self._config = self._folder / "cluster.yaml"
        self._config.write_text(yaml.safe_dump({**settings, "name": name}))
        self._environment = {
            **{key: value for key, value in os.environ.items() if not key.startswith(("RAY_", "XDG_"))},
            "XDG_RUNTIME_DIR": str(self._folder),
            "XDG_CACHE_HOME": os.environ.get("XDG_CACHE_HOME", str(Path.home() / ".cache")),
        }
        self._output = self._folder / "output.txt"
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Deployment:
        with self._output.open("wb") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "slipstream.cluster.cli", "serve", str(self._config)],
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        deadline_s = time.monotonic() + START_TIMEOUT_S
        while (state := self.state) is None or state.phase != "ready":
            if self._process.poll() is not None or time.monotonic() > deadline_s:
                self.__exit__()
                raise RuntimeError(f"the cluster did not come up:\n{self._output.read_text()}")
            time.sleep(0.2)
        self._slice()
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process is not None
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            self._process.send_signal(signal.SIGINT)  # running requests need not end
            try:
                self._process.wait(END_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                os.killpg(self._process.pid, signal.SIGKILL)
                self._process.wait()

    @property
    def said(self) -> str:
        """What the driver has said."""
        return self._output.read_text()

    def load(self, workload: Path, tokenizer: Path, slos: tuple[str, str]) -> Watched:
        """Everything of the workload, at its times."""
        state = self.state
        assert state is not None
        records = self._folder / "records.jsonl"
        command = [sys.executable, "-m", "slipstream.cluster.cli", "bench", f"{state.url}/v1", *slos]
        command += ["--workload", str(workload), "--tokenizer", str(tokenizer), "--endpoint", "completions"]
        command += ["--records", str(records), "--warm-up", "0", "--timeout", "120"]
        watched, is_over = Watched(), threading.Event()
        began_s = time.monotonic()
        watched.began_unix_s = time.time()
        watching = threading.Thread(target=self._watch, args=(state, watched, began_s, is_over), daemon=True)
        watching.start()
        try:
            done = subprocess.run(command, env=self._environment, capture_output=True, text=True, check=False)
        finally:
            is_over.set()
            watching.join()
        if not records.exists():
            raise RuntimeError(f"no requests: {done.stderr}")
        watched.requests = [json.loads(line) for line in records.read_text().splitlines()]
        try:
            answer = ask(f"{state.operator_url}/v1/planner/decisions?last=1000&changes=true", state.operator_token)
            watched.decisions = answer["decisions"]
        except CommandError as error:
            print(error, file=sys.stderr)
        return watched

    def _watch(self, state: ClusterState, watched: Watched, began_s: float, is_over: threading.Event) -> None:
        while not is_over.wait(LOOK_S):
            self._slice()  # also workers that came later
            try:
                workers = ask(f"{state.ask_url}/cluster/status", None)["workers"]
            except CommandError:
                continue
            roles = [worker["role"] for worker in workers if not worker["draining"]]
            watched.roles.append((time.monotonic() - began_s, roles.count("prefill"), roles.count("decode")))

    def _slice(self) -> None:
        state = self.state
        if state is None or self._slices is None:
            return
        for member in state.members:
            if member.role in ("prefill", "decode"):
                self._slices.give(member.name, member.pids)

    @property
    def state(self) -> ClusterState | None:
        states = clusters_here.read_all(self._folder / "slipstream")
        return states[0] if states else None
