"""The units are valid, confined, and give the cluster the time that it takes to drain."""

from __future__ import annotations

import configparser
import shutil
import subprocess
from pathlib import Path

import pytest

from slipstream.cluster.config.cluster_config import ClusterConfig

FOLDER = Path(__file__).resolve().parents[2] / "configs" / "systemd"
UNITS = sorted(FOLDER.glob("*.service"))
MAX_EXPOSURE = 3.0  # of 10; the rest is the network, which it serves


@pytest.fixture
def units(tmp_path: Path) -> Path:
    """A folder with the units, their drop-ins, and programs that are there."""
    systemd_analyze = shutil.which("systemd-analyze")
    if systemd_analyze is None:
        pytest.skip("there is no systemd-analyze")
    for unit in UNITS:
        text = unit.read_text()
        for program in ("slipstream", "ray"):
            text = text.replace(f"/opt/slipstream/bin/{program}", "/bin/true")
        (tmp_path / unit.name).write_text(text)
    for unit_name, names in {
        "slipstream.service": ("several-hosts", "gpu"),
        "slipstream-ray-worker.service": ("gpu",),
    }.items():
        (tmp_path / f"{unit_name}.d").mkdir()
        for name in names:
            shutil.copy(FOLDER / f"{name}.conf", tmp_path / f"{unit_name}.d")
    return tmp_path


def analyzed(units: Path, *words: str) -> subprocess.CompletedProcess[str]:
    env = {"SYSTEMD_UNIT_PATH": f"{units}:", "PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8"}
    command = ["systemd-analyze", *words]
    return subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=60)


@pytest.mark.parametrize("unit", UNITS, ids=lambda path: path.name)
def test_systemd_finds_nothing_wrong(unit: Path, units: Path) -> None:
    done = analyzed(units, "verify", "--man=no", str(units / unit.name))
    assert (done.returncode, [line for line in done.stderr.splitlines() if "slipstream" in line]) == (0, [])


def test_systemd_finds_a_mistake(units: Path) -> None:
    unit = units / "slipstream.service"
    unit.write_text(unit.read_text().replace("KillMode=mixed", "KillMod=mixed"))
    assert "KillMod" in analyzed(units, "verify", "--man=no", str(unit)).stderr


@pytest.mark.parametrize("unit", UNITS, ids=lambda path: path.name)
def test_a_unit_is_confined(unit: Path, units: Path) -> None:
    done = analyzed(units, "security", "--offline=true", f"--threshold={MAX_EXPOSURE * 10:g}", "--no-pager", unit.name)
    assert done.returncode == 0, done.stdout[-300:] + done.stderr


def test_the_cluster_may_drain_before_it_is_killed() -> None:
    parser = configparser.ConfigParser(strict=False, interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read(FOLDER / "slipstream.service")
    service = parser["Service"]
    defaults = {field.name: field.default for field in ClusterConfig.__dataclass_fields__.values()}
    assert int(service["TimeoutStopSec"]) > defaults["drain_grace_s"] + defaults["drain_timeout_s"] + 10
    assert (service["Type"], service["KillMode"]) == ("notify", "mixed")
