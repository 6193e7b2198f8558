"""A Ray cluster over several hosts of a `Network`, and Slipstream on it."""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import socket
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import yaml

from slipstream.cluster.state import state_file
from slipstream.cluster.state.cluster_state import ClusterState, MemberStatus
from tests.support.hosts.host_network import Host, Network

ROOT = Path(__file__).resolve().parents[3]
DEMO_MODEL = ROOT / "models" / "slipstream-demo"
RAY = (sys.executable, "-m", "ray.scripts.scripts")
GCS_PORT, DASHBOARD_PORT = 6379, 8265  # Ray's own; on a host of its own they are free
START_TIMEOUT_S = 100.0
# A check a second, of which twelve may fail: a dead host is known within half a minute instead of a whole one.
QUICK_DEATHS = {
    "RAY_health_check_initial_delay_ms": "1000",
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "1000",
    "RAY_health_check_failure_threshold": "12",
}


class RayHosts:
    """A head and further hosts, each with a raylet of its own. `home` is the home of the driver."""

    def __init__(self, network: Network, *, head: str = "head", autoscaler: dict[str, Any] | None = None) -> None:
        self.network = network
        self.home = Path(tempfile.mkdtemp(prefix="hosts-", dir="/tmp"))  # short: Unix sockets live below it
        self._environment = {
            **{key: value for key, value in os.environ.items() if not key.startswith(("RAY_", "XDG_", "UCX_"))},
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "HOME": str(self.home),
            "XDG_RUNTIME_DIR": str(self.home / "run"),
            "XDG_CACHE_HOME": str(self.home / "cache"),
            "XDG_STATE_HOME": str(self.home / "state"),
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": secrets.token_hex(32),
            "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
            "RAY_enable_metrics_collection": "0",
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_worker_niceness": "0",
            "PYTHONPATH": str(ROOT),
            **QUICK_DEATHS,
        }
        (self.home / "run").mkdir()
        self._commands: dict[str, tuple[list[str], dict[str, str]]] = {}
        more = []
        if autoscaler is None:
            more.append("--no-monitor")
        else:
            (self.home / "autoscaler.json").write_text(json.dumps(autoscaler))
            more.append(f"--autoscaling-config={self.home / 'autoscaler.json'}")
            node_id = autoscaler["provider"]["head_node_id"]
            self._environment |= {"RAY_FAKE_CLUSTER": "1", "AUTOSCALER_UPDATE_INTERVAL_S": "1"}
            self._environment |= {"RAY_enable_autoscaler_v2": "1", "RAY_CLOUD_INSTANCE_ID": node_id}
            self._environment["RAY_OVERRIDE_NODE_ID_FOR_TESTING"] = node_id
        more += ["--head", f"--port={GCS_PORT}", "--dashboard-host=0.0.0.0", f"--dashboard-port={DASHBOARD_PORT}"]
        more += ["--include-dashboard=true", f"--temp-dir={self.home}"]
        self.head = self._start(head, more, num_cpus=1, labels={}, resources={})
        self._wait_for_port(self.head, GCS_PORT)
        self._wait_for_port(self.head, DASHBOARD_PORT)

    def __enter__(self) -> RayHosts:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for name in self._commands:
            self.network.hosts[name].kill()
        shutil.rmtree(self.home, ignore_errors=True)

    @property
    def address(self) -> str:
        return f"{self.head.address}:{GCS_PORT}"

    @property
    def dashboard(self) -> str:
        return f"http://{self.head.address}:{DASHBOARD_PORT}"

    def environment(self, **more: str) -> dict[str, str]:
        """For programs on the head that want this Ray."""
        return {**self._environment, "RAY_ADDRESS": self.address, **more}

    def add(
        self,
        name: str,
        *,
        num_cpus: int = 1,
        labels: Mapping[str, str] | None = None,
        resources: Mapping[str, float] | None = None,
    ) -> Host:
        """A further host. Returns at once."""
        more = [f"--address={self.address}"]
        return self._start(name, more, num_cpus=num_cpus, labels=labels or {}, resources=resources or {})

    def _start(
        self, name: str, more: list[str], *, num_cpus: int, labels: Mapping[str, str], resources: Mapping[str, float]
    ) -> Host:
        host = self.network.hosts.get(name) or self.network.add_host(name)
        command = [*RAY, "start", "--block", f"--node-ip-address={host.address}", "--disable-usage-stats"]
        command += ["--include-log-monitor=false", f"--num-cpus={num_cpus}", f"--object-store-memory={80 << 20}"]
        command += [f"--resources={json.dumps(dict(resources))}"]
        if labels:
            command += ["--labels=" + ",".join(f"{key}={value}" for key, value in labels.items())]
        command += more
        # UCX takes processes of one kernel for neighbours, and would call them at their loopback interfaces.
        environment = {**self._environment, "UCX_NET_DEVICES": "eth0"}
        self._commands[name] = (command, environment)
        self._again(host)
        return host

    def _again(self, host: Host) -> None:
        command, environment = self._commands[host.name]
        with (self.home / f"ray-{host.name}.txt").open("wb") as output:
            host.start(command, environment, output, self.home)

    def _wait_for_port(self, host: Host, port: int) -> None:
        deadline_s = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline_s and host.started[0].poll() is None:
            try:
                socket.create_connection((host.address, port), 1.0).close()
            except OSError:
                time.sleep(0.05)
            else:
                return
        raise AssertionError(self.words)

    def wait_for_hosts(self, count: int) -> None:
        """Returns when Ray has so many nodes that live."""
        deadline_s = time.monotonic() + START_TIMEOUT_S
        script = "import ray; ray.init(log_to_driver=False); print('nodes:', sum(n['Alive'] for n in ray.nodes()))"
        found: list[str] = []
        while time.monotonic() < deadline_s:
            done = self.head.run([sys.executable, "-c", script], self.environment(), self.home)
            found = re.findall(r"^nodes: (\d+)$", done.stdout, re.MULTILINE)  # Ray's daemons write there, too
            if found == [str(count)]:
                return
            for host in [self.network.hosts[name] for name in self._commands]:
                # Ray gives up a node that needs more than 30 s to start, which a busy machine does.
                if host is not self.head and host.started and host.started[0].poll() is not None:
                    host.kill()
                    self._again(host)
            time.sleep(0.3)
        raise AssertionError(f"{found} hosts instead of {count}: {done.stderr[-1000:]}\n{self.words}")

    @property
    def words(self) -> str:
        """What `ray start` has said everywhere."""
        return "\n".join(f"==> {f.name}\n{f.read_text(errors='replace')[-2000:]}" for f in self.home.glob("ray-*.txt"))


class HostsCluster:
    """Slipstream as a job of a `RayHosts`, which has a dashboard to take it; has what `tests.e2e` asks of a
    `ServingCluster`."""

    def __init__(self, ray_hosts: RayHosts, settings: dict[str, Any]) -> None:
        self._ray_hosts = ray_hosts
        settings = json.loads(json.dumps(settings))
        settings.setdefault("name", "hosts")
        settings.setdefault("model", {"path": str(DEMO_MODEL)})
        settings.setdefault("router", {}).setdefault("http", {}).setdefault("port", 0)
        settings["router"]["http"]["host"] = ray_hosts.head.address
        settings.setdefault("admin_api", {})["host"] = ray_hosts.head.address
        self.name = settings["name"]
        self.config_path = ray_hosts.home / f"{self.name}.yaml"
        self.config_path.write_text(yaml.safe_dump(settings))

    def __enter__(self) -> HostsCluster:
        entrypoint = ["python", "-m", "slipstream.cluster.serve", str(self.config_path)]
        self._job("submit", f"--submission-id={self.name}", "--no-wait", "--", *entrypoint)
        try:
            self.wait_for(lambda: self.state is not None and self.state.phase == "ready", START_TIMEOUT_S)
        except BaseException:
            self._job("stop", "--no-wait", self.name)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._job("stop", self.name)
        assert error is not None or self.state is None, self.output

    def _job(self, *arguments: str) -> str:
        """`ray job`, on the head."""
        command = [*RAY, "job", arguments[0], f"--address={self._ray_hosts.dashboard}", *arguments[1:]]
        done = self._ray_hosts.head.run(command, self._ray_hosts.environment(), self._ray_hosts.home)
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr}\n{self._ray_hosts.words}"
        return done.stdout

    def slipstream(self, *arguments: str) -> str:
        """The command line, on the head. Returns what it says."""
        command = [sys.executable, "-m", "slipstream.cluster.cli", *arguments]
        done = self._ray_hosts.head.run(command, self._ray_hosts.environment(), self._ray_hosts.home)
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr}\n{self.output}"
        return done.stdout

    @property
    def output(self) -> str:
        return self._job("logs", self.name)

    @property
    def logs(self) -> str:
        """What the workers have written, on all hosts: they share a file system."""
        files = sorted(self._ray_hosts.home.glob("session_latest/logs/worker-*.err"))
        return "\n".join(f"==> {file.name}\n{file.read_text(errors='replace')[-3000:]}" for file in files)

    @property
    def state(self) -> ClusterState | None:
        return state_file.read(self._ray_hosts.home / "run" / "slipstream" / f"{self.name}.json")

    @property
    def base_url(self) -> str:
        state = self.state
        assert state is not None
        return state.url

    def member(self, name: str) -> MemberStatus:
        state = self.state
        assert state is not None, self.output
        return next(member for member in state.members if member.name == name)

    def get(self, path: str) -> tuple[int, bytes]:
        try:
            with urllib.request.urlopen(self.base_url + path, timeout=30) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read()

    def wait_for(self, condition: Callable[[], bool], timeout_s: float) -> None:
        """Raises AssertionError with all output if it does not come true in time."""
        deadline_s = time.monotonic() + timeout_s
        while not condition():
            assert time.monotonic() < deadline_s, f"not in time\n{self.output}\n{self.logs[-6000:]}"
            time.sleep(0.1)
