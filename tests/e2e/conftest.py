"""A cluster for all tests of a session, and a maker of clusters for tests that break theirs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.serving_cluster import ServingCluster

SMALL: dict[str, Any] = {
    "engine": {"dtype": "float32", "device": "cpu", "kv_cache_mib": 32, "num_threads": 1},
    "router": {"dispatch": {"local_prefill_max_tokens": 32}},
    "restart": {"backoff_s": 0.1},
    "drain_timeout_s": 20,
}

MakeCluster = Callable[..., ServingCluster]


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServingCluster]:
    """One prefill and one decode worker with the demo model; prompts over 32 tokens are prefilled remotely."""
    with ServingCluster(tmp_path_factory.mktemp("cluster"), SMALL) as serving:
        yield serving


@pytest.fixture
def make_cluster(tmp_path: Path) -> Iterator[MakeCluster]:
    """`make_cluster(settings, model_dir=...)`: a cluster that is not started yet; ended with the test in any case."""
    with ExitStack() as stack:

        def make(settings: dict[str, Any] | None = None, **options: Any) -> ServingCluster:
            serving = ServingCluster(tmp_path / "cluster", {**SMALL, **(settings or {})}, **options)
            stack.callback(lambda: serving.end() if serving.was_launched else None)
            return serving

        yield make
