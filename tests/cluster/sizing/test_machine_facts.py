"""What is found out about a machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from slipstream.cluster.sizing import machine_facts as machine_module
from slipstream.cluster.sizing.machine_facts import MIB, free_memory_bytes, read_machine, torch_cuda, visible_gpus

TWO = "0, GPU-aaaa, 81000\n1, GPU-bbbb, 500\n"


@pytest.mark.parametrize(
    ("listed", "visible", "free_mib"),
    [
        (TWO, None, (81000, 500)),
        (TWO, "1", (500,)),
        (TWO, "1,0", (500, 81000)),
        (TWO, "GPU-a", (81000,)),
        (TWO, "0,7,1", (81000,)),  # CUDA stops at the first that it does not know
        (TWO, "-1", ()),
        (TWO, "", ()),
        ("0, GPU-aaaa, [N/A]\n", None, ()),
        ("No devices were found\n", None, ()),
        ("", None, ()),
    ],
)
def test_the_gpus_that_count_are_those_that_cuda_would_use(
    listed: str, visible: str | None, free_mib: tuple[int, ...]
) -> None:
    assert visible_gpus(listed, visible) == tuple(mib * MIB for mib in free_mib)


def test_the_limit_of_a_container_is_what_is_free_in_it(tmp_path: Path) -> None:
    group = tmp_path / "sys/fs/cgroup"
    group.mkdir(parents=True)
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/meminfo").write_text("MemTotal: 64000000 kB\nMemAvailable:   32000000 kB\n")
    (tmp_path / "proc/self/cgroup").write_text("0::/\n")
    (tmp_path / "proc/self/mountinfo").write_text("30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n")
    (group / "memory.max").write_text(f"{2048 * MIB}\n")
    (group / "memory.current").write_text(f"{500 * MIB}\n")
    (group / "memory.stat").write_text(f"anon 0\ninactive_file {100 * MIB}\n")
    assert free_memory_bytes(tmp_path) == (2048 - 500 + 100) * MIB
    (group / "memory.max").write_text("max\n")
    assert free_memory_bytes(tmp_path) == 32000000 * 1024


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("__version__ = '2.13.0'\ncuda: Optional[str] = '13.0'\n", "13.0"),
        ("__version__ = '2.13.0+cpu'\ncuda: Optional[str] = None\nhip: Optional[str] = None\n", None),
        ("cuda = '12.8'\n", "12.8"),
    ],
)
def test_the_build_of_pytorch_is_read_from_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, version: str | None
) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch/__init__.py").write_text("raise AssertionError('imported')")
    (tmp_path / "torch/version.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(machine_module.importlib.util.sys.modules, "torch", raising=False)  # type: ignore[attr-defined]
    assert torch_cuda() == version


def test_this_machine_has_cores_and_memory() -> None:
    machine = read_machine()
    assert machine.num_cores >= 1
    assert machine.memory_bytes > 0
