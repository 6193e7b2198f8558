"""Runs `slipstream serve` as what it is, a program of its own, and leaves nothing of it behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

import psutil
import yaml

from slipstream.cluster.state import state_file
from slipstream.cluster.state.cluster_state import ClusterState, MemberStatus

ROOT = Path(__file__).resolve().parents[3]
DEMO_MODEL = ROOT / "models" / "slipstream-demo"
START_TIMEOUT_S = 240.0  # of several that start at once, on a machine that does other things, too
END_TIMEOUT_S = 90.0
LOOK_EVERY_S = 0.5


class ServingCluster:
    """A cluster on a free port that is started by `with` and gone afterwards, whatever happened.

    `settings` is what the YAML file will say; `router.http.port` (0) and, unless there are others, `model` are added.
    It is the guardian of its drivers. Pids and states come from the state file that these write. Clusters of one `home`
    (by default the folder) know of each other, as those of one user do.
    """

    def __init__(
        self,
        folder: Path,
        settings: dict[str, Any] | None = None,
        *,
        model_dir: Path = DEMO_MODEL,
        home: Path | None = None,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.home = home or folder
        self.name = "e2e"
        settings = json.loads(json.dumps(settings or {}))
        settings.setdefault("name", self.name)
        if not {"models", "repository"} & settings.keys():
            settings.setdefault("model", {"path": str(model_dir)})
        settings.setdefault("router", {}).setdefault("http", {}).setdefault("port", 0)
        self.name = settings["name"]
        self.config_path = folder / "cluster.yaml"
        self.config_path.write_text(yaml.safe_dump(settings))
        self.command = [sys.executable, "-m", "slipstream.cluster.cli", "serve", str(self.config_path)]
        self.working_directory: Path | None = None  # None: that of the tests
        self.environment = {
            **{key: value for key, value in os.environ.items() if not key.startswith(("RAY_", "XDG_"))},
            "XDG_RUNTIME_DIR": str(self.home / "run"),
            "XDG_CACHE_HOME": str(self.home / "cache"),
            "XDG_STATE_HOME": str(self.home / "state"),
        }
        (self.home / "run").mkdir(parents=True, exist_ok=True)
        self._output = folder / "output.txt"
        self._process: subprocess.Popen[bytes] | None = None
        self._seen: set[psutil.Process] = set()

    def launch(self) -> None:
        """Starts the guardian and returns at once. Ctrl-C can be tried on it: it leads a process group."""
        with self._output.open("wb") as output:
            self._process = subprocess.Popen(
                self.command,
                cwd=self.working_directory,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                process_group=0,
            )

    def start(self) -> None:
        """Launches and waits until the cluster says that it is ready. Raises AssertionError with all that was said."""
        self.launch()
        self.wait_until_ready()

    def wait_until_ready(self) -> None:
        """For a cluster that was launched. It is ended if that is in vain."""
        try:
            self.wait_for(lambda: self.state is not None and self.state.phase == "ready", START_TIMEOUT_S)
        except BaseException:
            self.end()
            raise

    def __enter__(self) -> ServingCluster:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        left = self.end()
        if error is None:
            assert not left, f"left behind: {left}"

    def interrupt(self) -> None:
        """As Ctrl-C does: SIGINT for all processes of the group."""
        assert self._process is not None
        os.killpg(self._process.pid, signal.SIGINT)

    def terminate(self) -> None:
        """As `kill` does: SIGTERM for the guardian."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)

    def wait(self, timeout_s: float = END_TIMEOUT_S) -> int:
        """Waits for the guardian to end; its exit code."""
        assert self._process is not None
        return self._process.wait(timeout_s)

    def wait_for_end(self, timeout_s: float) -> None:
        """Waits for a cluster that is to end by itself, and takes note of its processes meanwhile."""
        assert self._process is not None
        deadline_s = time.monotonic() + timeout_s
        while self._process.poll() is None and time.monotonic() < deadline_s:
            self.processes()
            time.sleep(0.1)

    def end(self) -> list[str]:
        """Ends the cluster if it still runs. Returns what it left behind (and kills that)."""
        assert self._process is not None
        self.processes()
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)
            try:
                self._process.wait(END_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        return self.left_behind(0.0)

    def left_behind(self, patience_s: float, but: str | None = None) -> list[str]:
        """Processes seen below the guardian that still live after so many seconds; those with `but` in their command
        are neither waited for nor notified. All of them are killed."""
        commands = {process: command_of(process) for process in self._seen}
        others = [process for process, command in commands.items() if but is None or but not in command]
        psutil.wait_procs(others, timeout=patience_s)
        left = []
        for process, command in commands.items():
            try:
                if process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
                    if process in others:
                        left.append(f"{process.pid} {command[:120]}")
                    process.kill()
            except psutil.NoSuchProcess:
                continue
        return left

    @property
    def was_launched(self) -> bool:
        return self._process is not None

    @property
    def pid(self) -> int:
        """Of the guardian."""
        assert self._process is not None
        return self._process.pid

    @property
    def output(self) -> str:
        """All that was said at the terminal."""
        return self._output.read_text(errors="replace")

    @property
    def logs(self) -> str:
        """All that its processes have written."""
        files = sorted((self.home / "cache" / "slipstream" / "logs" / self.name).glob("*.log"))
        return "\n".join(f"==> {file.name}\n{file.read_text(errors='replace')}" for file in files)

    @property
    def state(self) -> ClusterState | None:
        return state_file.read(self.home / "run" / "slipstream" / f"{self.name}.json")

    @property
    def base_url(self) -> str:
        """`http://host:port`, without a path."""
        state = self.state
        assert state is not None
        assert state.url
        return state.url

    def member(self, name: str) -> MemberStatus:
        """`router`, `prefill-0`, `decode-0`, ..."""
        state = self.state
        assert state is not None, self.output
        return next(member for member in state.members if member.name == name)

    def pids(self, name: str) -> list[int]:
        """Of a member; none as long as it has none, or is so new that the state file does not have it yet."""
        state = self.state
        members = state.members if state is not None else []
        return next((member.pids for member in members if member.name == name), [])

    def processes(self) -> list[psutil.Process]:
        """All that run below the guardian now; remembered, to be looked for at the end."""
        try:
            found = psutil.Process(self.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return []
        self._seen.update(found)
        return found

    def get(self, path: str) -> tuple[int, bytes]:
        """Status and body."""
        try:
            with urllib.request.urlopen(self.base_url + path, timeout=30) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read()

    def wait_for(self, condition: Callable[[], bool], timeout_s: float) -> None:
        """Raises AssertionError with all output if it does not come true in time or the guardian ends before."""
        assert self._process is not None
        deadline_s = time.monotonic() + timeout_s
        look_s = 0.0
        while not condition():
            if time.monotonic() >= look_s:  # through all processes of the machine: not at every turn
                self.processes()
                look_s = time.monotonic() + LOOK_EVERY_S
            ended = self._process.poll()
            late = time.monotonic() > deadline_s
            assert ended is None and not late, (  # noqa: PT018
                f"{'not in time' if ended is None else f'ended with {ended}'}\n{self.output}\n{self.logs[-6000:]}"
            )
            time.sleep(0.05)

    def wait_until_restarted(self, name: str, old_pids: list[int], timeout_s: float = 100.0) -> None:
        """Returns when a member is ready with none of its old processes."""

        def restarted() -> bool:
            member = self.member(name)
            return member.state == "ready" and bool(member.pids) and not set(member.pids) & set(old_pids)

        self.wait_for(restarted, timeout_s)

    def wait_until_served_by_another(self, driver: int, timeout_s: float = 90.0) -> None:
        """Returns when the driver is not the one of that pid, and its cluster serves."""
        self.wait_for(lambda: (s := self.state) is not None and s.driver != driver and s.phase == "ready", timeout_s)


def command_of(process: psutil.Process) -> str:
    """Empty for one that has ended."""
    try:
        return " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        return ""
