"""What a running cluster says about itself, as seen from outside: its status page and its metrics page."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from tests.support.e2e.serving_cluster import ServingCluster

HEAL_TIMEOUT_S = 100.0
IDLE_PAGES = frozenset({"free", "cached", "withheld"})


class Scrape:
    """One reading of /metrics."""

    def __init__(self, text: str) -> None:
        self._families = {family.name: family for family in text_string_to_metric_families(text)}
        self._samples = [sample for family in self._families.values() for sample in family.samples]

    @classmethod
    def of(cls, serving: ServingCluster) -> Scrape:
        status, body = serving.get("/metrics")
        assert status == 200, body
        return cls(body.decode())

    @property
    def names(self) -> set[str]:
        return {sample.name for sample in self._samples}

    def kind(self, family: str) -> str:
        """`counter`, `gauge` or `histogram`. A counter's family goes without `_total`."""
        return str(self._families[family].type)

    def value(self, name: str, **labels: str) -> float:
        """The sum of all samples of a name that carry the labels; 0 where a label has not occurred yet."""
        found = [s for s in self._samples if s.name == name and labels.items() <= s.labels.items()]
        assert found or labels or self._names_family(name), f"no metric is called {name}"
        return sum(sample.value for sample in found)

    def buckets(self, name: str) -> list[tuple[float, float]]:
        """Upper bounds and cumulative counts of a histogram, of all its labels together."""
        sums: Counter[float] = Counter()
        for sample in self._samples:
            if sample.name == f"{name}_bucket":
                sums[float(sample.labels["le"])] += int(sample.value)
        return sorted((bound, float(count)) for bound, count in sums.items())

    def _names_family(self, name: str) -> bool:
        return name in self._families or name.removesuffix("_total") in self._families


def moved(before: Scrape, after: Scrape, name: str, **labels: str) -> float:
    """By how much a counter has grown between two readings."""
    return after.value(name, **labels) - before.value(name, **labels)


def status_of(serving: ServingCluster) -> dict[str, Any]:
    """The router's own account: requests by phase, workers with credits and pages, totals."""
    code, body = serving.get("/cluster/status")
    assert code == 200, body
    status: dict[str, Any] = json.loads(body)
    return status


def workers_of(serving: ServingCluster, role: str) -> list[dict[str, Any]]:
    """The connected workers of a role."""
    return [worker for worker in status_of(serving)["workers"] if worker["role"] == role]


def unrest(serving: ServingCluster) -> list[str]:
    """All that is not as in a cluster without work; empty if nothing is running, reserved, held or draining."""
    try:
        status = status_of(serving)
    except OSError as error:
        return [f"the router does not answer: {error}"]
    found = [] if status["ready"] else [f"not ready: {status['unready_because']}"]
    found += [f"{status[key]} {key}" for key in ("num_waiting", "num_running") if status[key]]
    state = serving.state
    assert state is not None
    found += [f"{member.name} is {member.state}" for member in state.members if member.state != "ready"]
    wanted = Counter(member.role for member in state.members if member.role != "router")
    found += [f"no {role} worker" for role in wanted - Counter(worker["role"] for worker in status["workers"])]
    for worker in status["workers"]:
        found += [f"{worker['peer']['name']}: {what}" for what in _unrest_of(worker)]
    return found


def _unrest_of(worker: dict[str, Any]) -> list[str]:
    found = [f"{worker['num_requests']} requests"] if worker["num_requests"] else []
    if worker["free_slots"] != worker["max_slots"]:
        found.append(f"{worker['free_slots']} of {worker['max_slots']} slots free")
    if worker["free_pages"] != worker["num_pages"]:
        found.append(f"{worker['free_pages']} of {worker['num_pages']} pages free")
    if worker["stats"] is None:
        return [*found, "has sent no statistics yet"]
    stats = worker["stats"]
    found += [f"{count} pages {state}" for state, count in stats["pages"] if count and state not in IDLE_PAGES]
    found += [f"{stats[key]} {key}" for key in ("num_running", "num_waiting") if stats[key]]
    found += [f"{value} {name}" for name, value in stats["counters"] if name == "leases_held" and value]
    return found


def wait_until_at_rest(serving: ServingCluster, timeout_s: float = HEAL_TIMEOUT_S) -> None:
    """Returns when all members are ready and every page, slot and lease has been given back."""
    wait_until_clear(serving, lambda: unrest(serving), timeout_s)


def wait_for_phase(serving: ServingCluster, phase: str, at_least: int = 1) -> None:
    """Returns when so many requests are in a phase of their life at the same moment."""

    def missing() -> list[str]:
        by_phase = status_of(serving)["num_requests_by_phase"]
        return [] if by_phase.get(phase, 0) >= at_least else [f"requests by phase are {by_phase}"]

    wait_until_clear(serving, missing, 60.0, pause_s=0.005)


def wait_until_clear(
    serving: ServingCluster, obstacles: Callable[[], list[str]], timeout_s: float, pause_s: float = 0.1
) -> None:
    """Asks again and again what is in the way until nothing is. Raises AssertionError with what still was."""
    deadline_s = time.monotonic() + timeout_s
    while found := obstacles():
        assert time.monotonic() < deadline_s, (
            f"still after {timeout_s:g} s: {found}\n{serving.output}\n{serving.logs[-6000:]}"
        )
        time.sleep(pause_s)
