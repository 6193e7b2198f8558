"""How soon does a worker serve another model, by a swap and by a new process?

    python scripts/bench/swap/bench_swap.py                # five rounds
    python scripts/bench/swap/bench_swap.py --rounds 10

One cluster with the demo model under two names, the second with weights in eight bits, and one decode worker. In each
round the worker goes to the second model and back, and then, beside it, a new worker is started for the second model
and removed. Times are from the call to the first token of a request that waits for it. `stages` are those that the
worker reports; what is left is the supervisor's, and the start of the process.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import urllib.request
from collections.abc import Callable, Iterable
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT))

from scripts.bench.elastic.bench_deployment import Deployment  # noqa: E402
from slipstream.cluster.admin_api.client.admin_client import AdminClient, client_of  # noqa: E402
from slipstream.cluster.state.cluster_state import ClusterState  # noqa: E402

DEMO = str(ROOT / "models" / "slipstream-demo")
SETTINGS: dict[str, Any] = {
    "models": [
        {"name": "chat", "path": DEMO, "decode": {"replicas": 1}},
        {"name": "code", "path": DEMO, "decode": {"replicas": 0}, "min_workers": 0, "engine": {"quantization": "int8"}},
    ],
    "engine": {"kv_cache_mib": 64},
    "router": {"http": {"port": 0}},
}
PATIENCE_S = 60.0
LOOK_S = 0.02
Start = tuple[float, dict[str, float]]  # seconds to the first token, seconds of each stage


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    starts: dict[str, list[Start]] = {"swap to code": [], "swap to chat": [], "new process": []}
    with Deployment("swap", SETTINGS, None) as cluster:
        state = cluster.state
        assert state is not None
        admin = client_of(state)
        (worker,) = members(admin)
        for number in range(rounds + 1):
            times = [
                timed(state, admin, "code", lambda: move(admin, worker, "code")),
                timed(state, admin, "chat", lambda: move(admin, worker, "chat")),
                timed(state, admin, "code", lambda: scale(admin, 1)),
            ]
            scale(admin, 0)
            wait_for(lambda: list(members(admin)) == [worker])
            if number:  # in the first round, the packed weights of the second model are written
                for values, start in zip(starts.values(), times, strict=True):
                    values.append(start)
            print(number, *(f"{seconds:.2f}" for seconds, _ in times), flush=True)
    print(f"\n{'median of ' + str(rounds):<14}{'first token':>13}  stages")
    for name, values in starts.items():
        stages = {stage: median(start[1].get(stage, 0.0) for start in values) for stage in stages_of(values)}
        shown = ", ".join(f"{stage} {seconds:.2f}" for stage, seconds in stages.items())
        print(f"{name:<14}{median(start[0] for start in values):>11.2f} s  {shown}")


def stages_of(values: Iterable[Start]) -> list[str]:
    return list(dict.fromkeys(stage for _, stages in values for stage in stages))


def move(admin: AdminClient, worker: str, model: str) -> None:
    admin.post(f"/v1/workers/{worker}/model", {"model": model})


def scale(admin: AdminClient, replicas: int) -> None:
    admin.post("/v1/fleet/scale?model=code", {"role": "decode", "replicas": replicas})


def timed(state: ClusterState, admin: AdminClient, model: str, change: Callable[[], None]) -> Start:
    """Makes the change and asks the model for one token."""
    before = set(members(admin))
    began_s = time.perf_counter()
    change()
    body = {"model": model, "prompt": "def read(path):", "max_tokens": 1}
    question = urllib.request.Request(f"{state.url}/v1/completions", json.dumps(body).encode())
    question.add_header("Content-Type", "application/json")
    with urllib.request.urlopen(question, timeout=PATIENCE_S) as answer:
        answer.read()
    seconds = time.perf_counter() - began_s
    wait_for(lambda: all(member["state"] == "ready" for member in members(admin).values()))
    now = members(admin)
    name = next((name for name in now if name not in before), next(iter(now)))
    return seconds, dict(now[name]["startup_s"])


def members(admin: AdminClient) -> dict[str, dict[str, Any]]:
    return {member["name"]: member for member in admin.get("/v1/fleet")["members"]}


def wait_for(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > deadline_s:
            raise RuntimeError(f"waited {PATIENCE_S:g} s in vain")
        time.sleep(LOOK_S)


if __name__ == "__main__":
    main()
