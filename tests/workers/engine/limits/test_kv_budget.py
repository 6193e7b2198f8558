"""Pools of KV pages that follow from the memory there is."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from slipstream.workers.config.worker_config import EngineConfig
from slipstream.workers.engine.engine_builder import build_runner, engine_limits
from slipstream.workers.engine.limits.engine_errors import EngineConfigError
from slipstream.workers.engine.limits.kv_budget import auto_num_pages, host_available_bytes
from tests.support.workers.tiny_models import build_tiny_model

GIB = 2**30


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_tiny_model("llama", tmp_path_factory.mktemp("llama"))


def host(root: Path, files: dict[str, str]) -> Path:
    for name, text in {"proc/meminfo": "MemTotal: 16777216 kB\nMemAvailable: 8388608 kB\n", **files}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def group(path: str, limit: str, usage: int, cache: int, *, version: int = 2) -> dict[str, str]:
    names = ("memory.max", "memory.current", "inactive_file")
    if version == 1:
        names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
    base = f"sys/fs/cgroup/{path}/"
    stat = f"anon 5\n{names[2]} {cache}\n"
    return {base + names[0]: limit + "\n", base + names[1]: f"{usage}\n", base + "memory.stat": stat}


def test_without_control_groups_it_is_what_the_kernel_calls_available(tmp_path: Path) -> None:
    assert host_available_bytes(host(tmp_path, {})) == 8 * GIB


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"proc/self/cgroup": "0::/\n"}, 8 * GIB),
        ({"proc/self/cgroup": "0::/a/b\n", **group("a/b", "max", GIB, 0)}, 8 * GIB),
        ({"proc/self/cgroup": "0::/a/b\n", **group("a/b", str(4 * GIB), 2 * GIB, GIB)}, 3 * GIB),
        ({"proc/self/cgroup": "0::/a/b\n", **group("a", str(4 * GIB), 2 * GIB, 0)}, 2 * GIB),
        ({"proc/self/cgroup": "0::/a\n", **group("a", str(GIB), 2 * GIB, 0)}, 0),
        (
            {"proc/self/cgroup": "4:memory:/c\n3:cpuset:/\n0::/\n", **group("memory/c", f"{GIB}", 5, 5, version=1)},
            GIB,
        ),
        ({"proc/self/cgroup": "0::/a\n", **group("a", str(64 * GIB), 0, 0)}, 8 * GIB),
    ],
    ids=["root", "no limit", "cache is not taken", "of a parent", "used up", "version 1", "more than there is"],
)
def test_a_control_group_leaves_its_limit_less_what_is_taken(
    tmp_path: Path, files: dict[str, str], expected: int
) -> None:
    assert host_available_bytes(host(tmp_path, files)) == expected


def test_auto_is_no_more_than_all_sequences_can_fill(model_dir: Path) -> None:
    limits = engine_limits(model_dir, EngineConfig(kv_cache_mib="auto", max_num_seqs=3, max_model_len=100))
    assert (limits.num_pages, limits.max_model_len) == (3 * 7, 100)
    assert engine_limits(model_dir, EngineConfig(kv_cache_mib="auto")).num_pages == 64 * 32


def test_auto_is_divided_among_the_ranks_of_the_host(model_dir: Path) -> None:
    def num_pages(ranks_on_host: int, page_bytes: int) -> int:
        cpu = torch.device("cpu")
        return auto_num_pages(
            cpu, model_dir, tp_size=1, ranks_on_host=ranks_on_host, page_bytes=page_bytes, max_useful=10**12
        )

    assert 3.9 < num_pages(1, 4096) / num_pages(4, 4096) < 4.1
    with pytest.raises(EngineConfigError, match=r"kv_cache_mib auto: beside \d+ MiB of weights there are \d+ MiB left"):
        num_pages(1, 2**50)


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"kv_cache_mib": 10**8}, "kv_cache_mib 100000000 asks for 100000000"),
        ({"num_pages": 10**10}, "num_pages 10000000000"),
    ],
)
def test_a_pool_that_does_not_fit_is_refused_with_both_figures(
    model_dir: Path, settings: dict[str, int], named: str
) -> None:
    config = EngineConfig(**settings)  # type: ignore[arg-type]
    with pytest.raises(EngineConfigError, match=rf"{named}.* MiB of KV pages, and \d+ MiB are free on cpu"):
        build_runner(model_dir, config, engine_limits(model_dir, config).num_pages)
