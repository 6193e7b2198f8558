"""A cluster for all tests of a session, and a maker of clusters for tests that break theirs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import openai
import pytest
from xdist.scheduler import LoadScopeScheduling

from tests.support.e2e.fleet_calls import bring_to
from tests.support.e2e.reference import Reference
from tests.support.e2e.serving_cluster import DEMO_MODEL, ServingCluster
from tests.support.e2e.streams import client_of
from tests.support.router.authority import Authority
from tests.support.router.otlp_collector import OtlpCollector

SMALL: dict[str, Any] = {
    "engine": {"dtype": "float32", "device": "cpu", "kv_cache_mib": 32, "num_threads": 1},
    "router": {
        "http": {"header_timeout_s": 2.0, "write_timeout_s": 12.0},
        "dispatch": {"local_prefill_max_tokens": 32},
    },
    "restart": {"backoff_s": 0.1},
    "drain_timeout_s": 60,
}

MakeCluster = Callable[..., ServingCluster]

TIMEOUT_S = 300.0  # of a test with the start of its cluster, on a machine that does other things, too


# Their tests change the numbers and roles of workers: of `fleet`.
SHARE_A_FLEET = frozenset({"test_guided.py", "test_migration.py", "test_resizing.py"})
# Their tests start clusters of their own; the longest come first. The other files share `cluster` and `tp2_cluster`.
HAVE_THEIR_OWN = (
    "test_rolling_update.py",
    "test_several_models.py",
    "test_last_attempts.py",
    "test_ray_job.py",
    "test_command_line.py",
    "test_fault_campaign.py",
    "test_prefix_index.py",
    "test_lifecycle.py",
    "test_weights.py",
    "test_wheel.py",
    "test_planner.py",
    "test_repository.py",
)


class OneProcessForEachCluster(LoadScopeScheduling):  # type: ignore[misc]
    """Where tests run in several processes (pytest-xdist), those that share a cluster run in one."""

    def _split_scope(self, nodeid: str) -> str:
        name = Path(nodeid.partition("::")[0]).name
        if name in HAVE_THEIR_OWN:
            return name
        return "fleet" if name in SHARE_A_FLEET else "cluster"


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> OneProcessForEachCluster:
    return OneProcessForEachCluster(config, log)


def pytest_itemcollected(item: pytest.Item) -> None:
    if item.get_closest_marker("timeout") is None:
        item.add_marker(pytest.mark.timeout(TIMEOUT_S))


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that share clusters run first, because they take longest; those of `cluster` end with `test_ends`, which
    ends it."""
    for item in items:
        if isinstance(item, pytest.Function) and "fleet" in item.fixturenames:
            assert item.path.name in SHARE_A_FLEET, f"{item.path.name} uses `fleet` and is not in SHARE_A_FLEET"

    def place(name: str) -> tuple[int, bool, bool]:
        own = HAVE_THEIR_OWN.index(name) + 1 if name in HAVE_THEIR_OWN else 0
        return own, name in SHARE_A_FLEET, name == "test_ends.py"

    items.sort(key=lambda item: place(item.path.name))


EITHER = ("cluster", "tp2_cluster")
# The clusters of all tests, by the fixture that gives each.
OF_ALL: dict[str, dict[str, Any]] = {
    "cluster": {**SMALL, "drain_grace_s": 600},  # which SIGTERM begins, and Ctrl-C ends
    "tp2_cluster": {**SMALL, "name": "e2e-tp2", "prefill": {"tp": 2}, "kv_transfer": {"transport": "nccl"}},
    "fleet_of_all": {
        **SMALL,
        "name": "e2e-fleet",
        "engine": {**SMALL["engine"], "kv_cache_mib": 64},  # for all long streams on one of two workers
        "decode": {"replicas": 2},
        "router": {
            **SMALL["router"],
            "dispatch": {
                **SMALL["router"]["dispatch"],
                "policy": "round_robin",
                # Tests count moves: none but theirs.
                "migration": {"precopy_pages": 8, "rebalance": False},
            },
        },
    },
}


@pytest.fixture(scope="session")
def collector() -> Iterator[OtlpCollector]:
    """Gets the traces of `cluster`: of requests whose callers ask for that."""
    collector = OtlpCollector()
    yield collector
    collector.close()


def tracing_to(collector: OtlpCollector) -> dict[str, Any]:
    return {"otlp_endpoint": collector.url, "sample_ratio": 0.0}


def encrypted(folder: Path) -> dict[str, Any]:
    """Workers come over TLS, and show a certificate."""
    tls = Authority(folder).issue("host")
    files = {"cert_file": tls.cert_file, "key_file": tls.key_file, "ca_file": tls.ca_file}
    return {"router": {**SMALL["router"], "worker_tls": files}}


@pytest.fixture(scope="session")
def launched(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, collector: OtlpCollector
) -> Iterator[dict[str, ServingCluster]]:
    """Those clusters of all tests that tests of this session need, launched at the same time: alone, a start leaves
    cores idle."""
    names = {name for item in request.session.items if isinstance(item, pytest.Function) for name in item.fixturenames}
    if "either_cluster" in names:
        names.update(EITHER)
    traced = {"router": {**SMALL["router"], "tracing": tracing_to(collector)}}
    settings = {**OF_ALL, "cluster": {**OF_ALL["cluster"], **traced}}
    if "tp2_cluster" in names:
        settings["tp2_cluster"] = {**OF_ALL["tp2_cluster"], **encrypted(tmp_path_factory.mktemp("tls") / "ca")}
    clusters = {name: ServingCluster(tmp_path_factory.mktemp(name), settings[name]) for name in OF_ALL if name in names}
    try:
        for serving in clusters.values():
            serving.launch()
        yield clusters
    finally:
        left = {name: serving.end() for name, serving in clusters.items() if serving.was_launched}
    assert not any(left.values()), f"left behind: {left}"


@pytest.fixture(scope="session")
def cluster(launched: dict[str, ServingCluster]) -> ServingCluster:
    """One prefill and one decode worker with the demo model; prompts over 32 tokens are prefilled remotely."""
    launched["cluster"].wait_until_ready()
    return launched["cluster"]


@pytest.fixture(scope="session")
def tp2_cluster(launched: dict[str, ServingCluster]) -> ServingCluster:
    """As `cluster`, with a prefill group of two tensor-parallel ranks, and pages that go over torch.distributed."""
    launched["tp2_cluster"].wait_until_ready()
    return launched["tp2_cluster"]


@pytest.fixture(scope="session")
def fleet_of_all(launched: dict[str, ServingCluster]) -> ServingCluster:
    """The cluster behind `fleet`."""
    launched["fleet_of_all"].wait_until_ready()
    return launched["fleet_of_all"]


@pytest.fixture
def fleet(fleet_of_all: ServingCluster) -> ServingCluster:
    """One prefill and two decode workers, which take streams in turn. Tests change their numbers and roles, and bring
    them back; what one that has failed left behind is put right here."""
    bring_to(fleet_of_all, 1, 2)
    return fleet_of_all


@pytest.fixture(params=EITHER, ids=["tp1", "tp2"])
def either_cluster(request: pytest.FixtureRequest) -> ServingCluster:
    """Runs a test twice: with a prefill group of one rank and of two."""
    serving: ServingCluster = request.getfixturevalue(request.param)
    return serving


@pytest.fixture
def client(cluster: ServingCluster) -> Iterator[openai.OpenAI]:
    """The real openai client of `cluster`."""
    with client_of(cluster) as client:
        yield client


@pytest.fixture
def either_client(either_cluster: ServingCluster) -> Iterator[openai.OpenAI]:
    """The real openai client of `either_cluster`."""
    with client_of(either_cluster) as client:
        yield client


@pytest.fixture(scope="session")
def reference() -> Reference:
    """The demo model in transformers."""
    return Reference(DEMO_MODEL)


@pytest.fixture
def make_cluster(tmp_path: Path) -> Iterator[MakeCluster]:
    """`make_cluster(settings, model_dir=...)`: a cluster that is not started yet; ended with the test in any case."""
    with ExitStack() as stack:

        def make(settings: dict[str, Any] | None = None, **options: Any) -> ServingCluster:
            serving = ServingCluster(tmp_path / "cluster", {**SMALL, **(settings or {})}, **options)
            stack.callback(lambda: serving.end() if serving.was_launched else None)
            return serving

        yield make
