"""A Prometheus of its own that scrapes a cluster with the configuration of the repository, and what it answers."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml

CONFIGURATION = Path(__file__).resolve().parents[2] / "configs" / "prometheus"
START_TIMEOUT_S = 30.0
QUERY_TIMEOUT_S = 10.0
INTERVAL = "1s"


@dataclass(frozen=True, slots=True)
class Target:
    """What a job of the configuration scrapes instead of its own targets, and the key that it shows."""

    url: str
    key: str = ""


@dataclass(frozen=True, slots=True)
class Prometheus:
    url: str

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The samples. Raises ValueError where Prometheus refuses the expression or cannot evaluate it."""
        return list(self._get("query", query=expression)["result"])

    def targets(self) -> list[dict[str, Any]]:
        return list(self._get("targets", state="active")["activeTargets"])

    def rules(self) -> list[dict[str, Any]]:
        return [rule for group in self._get("rules")["groups"] for rule in group["rules"]]

    def _get(self, what: str, **parameters: str) -> Mapping[str, Any]:
        url = f"{self.url}/api/v1/{what}?{urllib.parse.urlencode(parameters)}"
        try:
            with urllib.request.urlopen(url, timeout=QUERY_TIMEOUT_S) as answer:
                return dict(json.load(answer)["data"])
        except urllib.error.HTTPError as error:
            raise ValueError(json.load(error)["error"]) from error


def configuration(targets: Mapping[str, Target], folder: Path) -> dict[str, Any]:
    """The repository's configuration with short intervals and other targets by job. Keys are written to `folder`."""
    read: dict[str, Any] = yaml.safe_load((CONFIGURATION / "prometheus.yaml").read_text(encoding="utf-8"))
    read["global"] = {"scrape_interval": INTERVAL, "evaluation_interval": INTERVAL}
    jobs = {job["job_name"]: job for job in read["scrape_configs"]}
    if jobs.keys() != targets.keys():
        raise ValueError(f"prometheus.yaml has the jobs {sorted(jobs)}, the cluster {sorted(targets)}")
    for name, job in jobs.items():
        target = targets[name]
        address = urlsplit(target.url)
        job["scheme"], job["static_configs"] = address.scheme, [{"targets": [address.netloc]}]
        job.pop("tls_config", None)
        job.pop("authorization", None)
        if target.key:
            key_file = folder / f"{name}.key"
            key_file.touch(mode=0o600)
            key_file.write_text(target.key, encoding="utf-8")
            job["authorization"] = {"credentials_file": str(key_file)}
    return read


@contextmanager
def prometheus(targets: Mapping[str, Target], folder: Path) -> Iterator[Prometheus]:
    """Runs until the block ends. Certificates are verified with the authorities of the host, or with those in the file
    that the environment's SSL_CERT_FILE names. Raises FileNotFoundError without the program, TimeoutError where it
    does not start."""
    program = shutil.which("prometheus")
    if program is None:
        raise FileNotFoundError("prometheus is not on PATH (Debian: apt-get install prometheus)")
    rules = yaml.safe_load((CONFIGURATION / "rules.yaml").read_text(encoding="utf-8"))
    for group in rules["groups"]:
        group.pop("interval", None)
    (folder / "rules.yaml").write_text(yaml.safe_dump(rules), encoding="utf-8")
    (folder / "prometheus.yaml").write_text(yaml.safe_dump(configuration(targets, folder)), encoding="utf-8")
    address = f"127.0.0.1:{free_port()}"
    command = [program, f"--config.file={folder / 'prometheus.yaml'}", f"--storage.tsdb.path={folder / 'data'}"]
    with open(folder / "prometheus.log", "wb") as log:
        process = subprocess.Popen([*command, f"--web.listen-address={address}"], stdout=log, stderr=log)
    try:
        _wait_until_ready(process, f"http://{address}", folder / "prometheus.log")
        yield Prometheus(f"http://{address}")
    finally:
        process.terminate()
        process.wait()


def _wait_until_ready(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    until_s = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < until_s and process.poll() is None:
        try:
            with urllib.request.urlopen(f"{url}/-/ready", timeout=QUERY_TIMEOUT_S):
                return
        except OSError:
            time.sleep(0.1)
    raise TimeoutError(f"prometheus does not start: {log.read_text(encoding='utf-8', errors='replace')[-1000:]}")


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])
