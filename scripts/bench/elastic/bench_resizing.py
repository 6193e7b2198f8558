"""How long a running cluster takes to add a worker, to let one go, and to change a worker's role, idle or under load.

    slipstream serve configs/local.yaml &
    .venv/bin/python scripts/bench/elastic/bench_resizing.py --times 10 --streams 4

Streams ask the cluster for long greedy answers all the time; one that fails, or ends early, is counted.
"""

from __future__ import annotations

import argparse
import json
import statistics
import threading
import time
import urllib.request
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from slipstream.cluster.admin_api.client.admin_client import AdminClient, client_of
from slipstream.cluster.state.clusters_here import cluster_here

POLL_S = 0.02
NUM_TOKENS = 300


@dataclass
class Streams:
    """Requests that go on and on beside the changes."""

    url: str
    model: str
    stopped: threading.Event = field(default_factory=threading.Event)
    lock: threading.Lock = field(default_factory=threading.Lock)
    num_done: int = 0
    failures: list[str] = field(default_factory=list)

    def run(self, number: int) -> None:
        turn = 0
        while not self.stopped.is_set():
            turn += 1
            prompt = [100 + (number * 37 + turn * 101 + position * 11) % 3000 for position in range(200)]
            failure = self._ask(prompt)
            with self.lock:
                self.num_done += failure is None
                self.failures += [failure] if failure is not None else []

    def _ask(self, prompt: list[int]) -> str | None:
        body = {"model": self.model, "prompt": prompt, "max_tokens": NUM_TOKENS, "temperature": 0, "stream": True}
        question = urllib.request.Request(
            f"{self.url}/v1/completions",
            json.dumps(body | {"ignore_eos": True}).encode(),
            {"Content-Type": "application/json"},
        )
        try:
            with urllib.request.urlopen(question, timeout=120) as answer:
                text = answer.read().decode()
        except OSError as error:
            return str(error)
        return None if '"finish_reason":"length"' in text and '"error"' not in text else text[-300:]


@contextmanager
def streaming(streams: Streams, count: int) -> Iterator[None]:
    threads = [threading.Thread(target=streams.run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        streams.stopped.set()
        for thread in threads:
            thread.join()


def settled(admin: AdminClient, names: set[str]) -> dict[str, dict[str, float]]:
    """Waits until exactly these groups are there and ready; the stages of each one's last start."""
    while True:
        members = admin.get("/v1/fleet")["members"]
        if {member["name"] for member in members} == names and all(
            member["state"] == "ready" and not member["is_leaving"] for member in members
        ):
            return {member["name"]: dict(member["startup_s"]) for member in members}
        time.sleep(POLL_S)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--name", help="which of the clusters that run here")
    parser.add_argument("--times", type=int, default=10)
    parser.add_argument("--streams", type=int, default=0, help="requests at the same time, all the time")
    options = parser.parse_args()
    state = cluster_here(options.name, "--url")
    admin = client_of(state)
    names = {member["name"] for member in admin.get("/v1/fleet")["members"]}
    took_s: dict[str, list[float]] = defaultdict(list)
    streams = Streams(state.url, state.model)
    with streaming(streams, options.streams):
        for _ in range(options.times):
            began_s = time.monotonic()
            num_decode = admin.get("/v1/fleet")["num_decode"]
            (added,) = admin.post("/v1/fleet/scale", {"role": "decode", "replicas": num_decode + 1})["added"]
            stages = settled(admin, names | {added})[added]
            took_s["add a decode worker"].append(time.monotonic() - began_s)
            for stage, seconds in stages.items():
                took_s[f"    of that {stage}"].append(seconds)
            for role in ("prefill", "decode"):
                began_s = time.monotonic()
                admin.post(f"/v1/workers/{added}/role", {"role": role})
                stages = settled(admin, names | {added})[added]
                took_s[f"role to {role}"].append(time.monotonic() - began_s)
                for stage, seconds in stages.items():
                    took_s[f"    to {role}: {stage}"].append(seconds)
            began_s = time.monotonic()
            admin.post(f"/v1/workers/{added}/drain")
            settled(admin, names)
            took_s["remove it"].append(time.monotonic() - began_s)
    print(f"{'':32}{'median':>9}{'longest':>9}   seconds, {options.times} times, {options.streams} streams")
    for what, values in took_s.items():
        print(f"{what:32}{statistics.median(values):9.3f}{max(values):9.3f}")
    if options.streams:
        print(f"{streams.num_done} answers, {len(streams.failures)} failed {streams.failures[:3]}")


if __name__ == "__main__":
    main()
