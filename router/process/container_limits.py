"""How many CPUs and how much memory the control groups around this process allow (Docker, Kubernetes, systemd).

    quota     version 2: cpu.max              version 1: cpu.cfs_quota_us over cpu.cfs_period_us
    memory    version 2: memory.max           version 1: memory.limit_in_bytes
    cpuset    is in the affinity mask, which the kernel keeps within it

A limit of any group from the process's own up to the root holds for all below it, so the tightest one counts. Files
that are missing or say "max" set no limit. `cgroup(7)` and the kernel's cgroup-v1 and cgroup-v2 pages have the formats.

    container_limits()  --text of /proc/self/cgroup and /proc/self/mountinfo--> group_folders --> tightest limit

`root` is where proc and sys are mounted, for tests.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

ROOT = Path("/")
CGROUP_MOUNT = PurePosixPath("/sys/fs/cgroup")
UNLIMITED_BYTES = 1 << 60  # version 1 says "no limit" with the largest multiple of a page that fits into 63 bits


@dataclass(frozen=True, slots=True)
class GroupFolder:
    """A control group's folder: `version` 1 or 2, and whose files are in it."""

    version: int
    folder: PurePosixPath


@dataclass(frozen=True, slots=True)
class MemoryLimit:
    """The tightest limit of memory, and the file that sets it."""

    num_bytes: int
    file: str


def cpu_limit(root: Path = ROOT) -> float:
    """How many CPUs this process may use at the same time, as a number above 0: those of its affinity mask, or the
    quota of its control groups, if that is less."""
    return min([float(len(os.sched_getaffinity(0))), *_cpu_quotas(root)])


def num_cores(root: Path = ROOT) -> int:
    """How many threads can compute at the same time: whole CPUs within `cpu_limit`, at least one. What remains of a
    quota of 2.5 is for threads that compute little. A thread more would have all of them wait for the next period."""
    return max(1, int(cpu_limit(root)))


def memory_limit(root: Path = ROOT) -> MemoryLimit | None:
    """The tightest limit of memory around this process; None: there is none."""
    limits = []
    for group in _groups(root, "memory"):
        file = group.folder / ("memory.max" if group.version == 2 else "memory.limit_in_bytes")
        num_bytes = parse_bytes(_text(root, file))
        if num_bytes is not None:
            limits.append(MemoryLimit(num_bytes, str(file)))
    return min(limits, key=lambda limit: limit.num_bytes, default=None)


def memory_limit_bytes(root: Path = ROOT) -> int | None:
    """The tightest limit of memory around this process, in bytes; None: there is none."""
    limit = memory_limit(root)
    return None if limit is None else limit.num_bytes


def memory_rooms(root: Path = ROOT) -> Iterator[int]:
    """How many bytes are left within each limit around this process. Memory that is only cache does not count as
    used."""
    for group in _groups(root, "memory"):
        names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        limit_file, usage_file, cache = (
            names if group.version == 1 else ("memory.max", "memory.current", "inactive_file")
        )
        limit = parse_bytes(_text(root, group.folder / limit_file))
        used = parse_bytes(_text(root, group.folder / usage_file))
        if limit is not None and used is not None:
            yield limit - used + _field(_text(root, group.folder / "memory.stat"), cache)


def parse_cpu_max(text: str) -> float | None:
    """CPUs that version 2's `cpu.max` allows ("QUOTA PERIOD" in us, or "max PERIOD"); None: no limit."""
    quota, *rest = text.split() or ["max"]
    return _share(quota, rest[0] if rest else "100000")


def parse_cfs_quota(quota: str, period: str) -> float | None:
    """CPUs that version 1's `cpu.cfs_quota_us` (-1: no limit) and `cpu.cfs_period_us` allow; None: no limit."""
    return _share(quota.strip(), period.strip())


def parse_bytes(text: str) -> int | None:
    """The bytes of a limit or usage; None for "max", for version 1's number that means no limit, and for no number."""
    try:
        num_bytes = int(text)
    except ValueError:
        return None
    return num_bytes if 0 <= num_bytes < UNLIMITED_BYTES else None


def group_folders(cgroup: str, mountinfo: str, controller: str) -> list[GroupFolder]:
    """The folders of the control groups that limit a process, its own first, from the texts of its /proc/PID/cgroup
    and /proc/PID/mountinfo. `controller` is "cpu" or "memory".

    The paths in `cgroup` begin at the hierarchy's root, while a container may see only a part of that: the mount's own
    root is then the container's group, or the path lies outside of what is mounted, and only the mount's root counts.
    """
    mounts = _mounts(mountinfo)
    found = []
    for line in cgroup.splitlines():
        _, controllers, path = line.split(":", 2) if line.count(":") >= 2 else ("", "-", "")
        version = 2 if controllers == "" else 1
        if version == 1 and controller not in controllers.split(","):
            continue
        name = "" if version == 2 else controller
        known = [(root, point) for kind, root, point in mounts if kind == name]
        for root, point in known or [(PurePosixPath("/"), CGROUP_MOUNT / name)]:
            found += [GroupFolder(version, folder) for folder in _upwards(PurePosixPath(path), root, point)]
    return list(dict.fromkeys(found))


def _upwards(path: PurePosixPath, root: PurePosixPath, point: PurePosixPath) -> Iterator[PurePosixPath]:
    """The folders from a group's own up to where its hierarchy is mounted."""
    inside = path.relative_to(root) if path.is_relative_to(root) else PurePosixPath()
    if ".." not in inside.parts:
        for part in (inside, *inside.parents):
            yield point / part
    else:
        yield point


def _mounts(mountinfo: str) -> list[tuple[str, PurePosixPath, PurePosixPath]]:
    """(controller, or "" for version 2; the root of what is mounted; where), from proc(5)'s mountinfo."""
    found = []
    for line in mountinfo.splitlines():
        before, separator, after = line.partition(" - ")
        fields, kind_and_options = before.split(), after.split()
        if not separator or len(fields) < 5 or len(kind_and_options) < 3:
            continue
        root, point = PurePosixPath(fields[3]), PurePosixPath(fields[4])
        if kind_and_options[0] == "cgroup2":
            found.append(("", root, point))
        elif kind_and_options[0] == "cgroup":
            found += [(name, root, point) for name in kind_and_options[2].split(",")]
    return found


def _share(quota: str, period: str) -> float | None:
    try:
        share = int(quota) / int(period)
    except (ValueError, ZeroDivisionError):
        return None
    return share if share > 0 else None


def _field(text: str, name: str) -> int:
    """The number after a name at the beginning of a line; 0 if there is none."""
    for line in text.splitlines():
        key, _, number = line.partition(" ")
        if key == name:
            return parse_bytes(number) or 0
    return 0


def _cpu_quotas(root: Path) -> Iterable[float]:
    for group in _groups(root, "cpu"):
        if group.version == 2:
            quota = parse_cpu_max(_text(root, group.folder / "cpu.max"))
        else:
            period = _text(root, group.folder / "cpu.cfs_period_us")
            quota = parse_cfs_quota(_text(root, group.folder / "cpu.cfs_quota_us"), period)
        if quota is not None:
            yield quota


def _groups(root: Path, controller: str) -> list[GroupFolder]:
    proc = PurePosixPath("/proc/self")
    return group_folders(_text(root, proc / "cgroup"), _text(root, proc / "mountinfo"), controller)


def _text(root: Path, path: PurePosixPath) -> str:
    """The text of a file; "" if it cannot be read."""
    try:
        return (root / path.relative_to("/")).read_text()
    except (OSError, ValueError):
        return ""
