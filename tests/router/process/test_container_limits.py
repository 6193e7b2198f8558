"""Limits of CPU and memory from trees of control groups as container runtimes make them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from slipstream.router.process.container_limits import (
    GroupFolder,
    cpu_limit,
    group_folders,
    memory_limit,
    memory_limit_bytes,
    num_cores,
    parse_bytes,
    parse_cfs_quota,
    parse_cpu_max,
)

GIB = 2**30
V1_MOUNTS = (
    "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755\n"
    "32 31 0:29 {root} /sys/fs/cgroup/cpu,cpuacct rw,relatime - cgroup cgroup rw,cpu,cpuacct\n"
    "35 31 0:32 {root} /sys/fs/cgroup/memory rw,relatime shared:9 - cgroup cgroup rw,memory\n"
    "41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n"
)
V2_MOUNT = "30 23 0:26 {root} /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"
NO_LIMIT_V1 = "9223372036854771712"


@pytest.fixture(autouse=True)
def eight_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))


def tree(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def v1(group: str, quota: str, period: str = "100000") -> dict[str, str]:
    folder = f"sys/fs/cgroup/cpu,cpuacct/{group}"
    return {f"{folder}/cpu.cfs_quota_us": f"{quota}\n", f"{folder}/cpu.cfs_period_us": f"{period}\n"}


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, 8.0),
        ({"proc/self/cgroup": "0::/\n"}, 8.0),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "150000 100000\n"}, 1.5),
        ({"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/b/cpu.max": "max 100000\n"}, 8.0),
        (
            {
                "proc/self/cgroup": "0::/a/b/c\n",
                "sys/fs/cgroup/a/b/c/cpu.max": "max 100000\n",
                "sys/fs/cgroup/a/b/cpu.max": "300000 100000\n",
                "sys/fs/cgroup/a/cpu.max": "200000 100000\n",
            },
            2.0,
        ),
        ({"proc/self/cgroup": "0::/a\n", "sys/fs/cgroup/a/cpu.max": "6400000 100000\n"}, 8.0),
        ({"proc/self/cgroup": "4:cpu,cpuacct:/d/e\n", "proc/self/mountinfo": V1_MOUNTS, **v1("d/e", "50000")}, 8.0),
        (
            {
                "proc/self/cgroup": "9:memory:/\n4:cpu,cpuacct:/d/e\n0::/x\n",
                "proc/self/mountinfo": V1_MOUNTS.format(root="/"),
                **v1("d/e", "-1"),
                **v1("d", "50000", "20000"),
            },
            2.5,
        ),
        (
            {
                "proc/self/cgroup": "4:cpu,cpuacct:/docker/abc\n",
                "proc/self/mountinfo": V1_MOUNTS.format(root="/docker/abc"),
                **v1("", "300000"),
            },
            3.0,
        ),
        (
            {
                "proc/self/cgroup": "0::/../../other\n",
                "proc/self/mountinfo": V2_MOUNT.format(root="/"),
                "sys/fs/cgroup/cpu.max": "100000 100000",
            },
            1.0,
        ),
        (
            {
                "proc/self/cgroup": "0::/pod/c/init\n",
                "proc/self/mountinfo": V2_MOUNT.format(root="/pod/c"),
                "sys/fs/cgroup/cpu.max": "250000 100000",
                "sys/fs/cgroup/init/cpu.max": "max 100000",
            },
            2.5,
        ),
    ],
    ids=[
        *("no groups", "root", "quota", "no quota", "of a parent", "more than there is", "not what is mounted"),
        *("version 1, of a parent", "version 1, docker", "outside of the namespace", "inside a container"),
    ],
)
def test_cpus_are_those_of_the_tightest_quota(tmp_path: Path, files: dict[str, str], expected: float) -> None:
    assert cpu_limit(tree(tmp_path, files)) == expected


@pytest.mark.parametrize(("quota", "expected"), [("50000", 1), ("100000", 1), ("199999", 1), ("250000", 2), ("max", 8)])
def test_cores_are_the_whole_cpus_of_a_quota_and_at_least_one(tmp_path: Path, quota: str, expected: int) -> None:
    assert (
        num_cores(tree(tmp_path, {"proc/self/cgroup": "0::/", "sys/fs/cgroup/cpu.max": f"{quota} 100000"})) == expected
    )


def test_a_mask_of_fewer_cpus_counts_before_a_quota(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3})
    assert cpu_limit(tree(tmp_path, {"proc/self/cgroup": "0::/", "sys/fs/cgroup/cpu.max": "400000 100000"})) == 1.0


def test_memory_is_that_of_the_tightest_group_and_names_its_file(tmp_path: Path) -> None:
    files = {"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/b/memory.max": "max\n", "sys/fs/cgroup/memory.max": "5"}
    root = tree(tmp_path, files | {"sys/fs/cgroup/a/memory.max": f"{GIB}\n", "sys/fs/cgroup/memory.max": f"{2 * GIB}"})
    found = memory_limit(root)
    assert found is not None
    assert (found.num_bytes, found.file) == (GIB, "/sys/fs/cgroup/a/memory.max")


@pytest.mark.parametrize(("limit", "expected"), [(NO_LIMIT_V1, None), (str(GIB), GIB), ("broken", None)])
def test_memory_of_version_1(tmp_path: Path, limit: str, expected: int | None) -> None:
    files = {
        "proc/self/cgroup": "4:memory:/docker/abc\n",
        "proc/self/mountinfo": V1_MOUNTS.format(root="/docker/abc"),
        "sys/fs/cgroup/memory/memory.limit_in_bytes": limit,
    }
    assert memory_limit_bytes(tree(tmp_path, files)) == expected


@pytest.mark.parametrize("text", ["", "max", "max 100000", "x y", "100 0", "-1 100000", "1 2 3 4".replace("2", "z")])
def test_what_is_no_quota_is_no_limit(text: str) -> None:
    assert parse_cpu_max(text) is None


def test_the_parsers_take_the_kernels_forms() -> None:
    assert parse_cpu_max("50000 100000\n") == 0.5
    assert parse_cpu_max("50000") == 0.5
    assert parse_cfs_quota("-1\n", "100000\n") is None
    assert parse_cfs_quota("", "") is None
    assert parse_bytes("12\n") == 12
    assert parse_bytes("max\n") is parse_bytes("-1") is parse_bytes("") is None


@pytest.mark.parametrize("text", ["", "nonsense", "a:b", "1:cpu", "::", "0::relative/path"])
def test_a_strange_file_of_groups_harms_nobody(text: str) -> None:
    assert all(isinstance(found, GroupFolder) for found in group_folders(text, "also nonsense - x\n- \n", "cpu"))
