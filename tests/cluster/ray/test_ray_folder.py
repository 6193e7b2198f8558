"""Nothing of a Ray of our own stays in /tmp for long, however its driver ended."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from slipstream.cluster.ray import ray_folder
from slipstream.cluster.ray.ray_folder import RayFolder

DRIVER = """
import sys
from pathlib import Path
from slipstream.cluster.ray import ray_folder
ray_folder.PARENT = Path(sys.argv[1])
folder = ray_folder.RayFolder()
print(folder.path, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def parent(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setattr(ray_folder, "PARENT", tmp_path)
    return tmp_path


def test_the_folder_of_a_killed_driver_goes_with_the_next_start_and_not_before(parent: Path) -> None:
    command = [sys.executable, "-c", DRIVER, str(parent)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as driver:
        assert driver.stdout is not None
        left = Path(driver.stdout.readline().strip())
        RayFolder().close()
        assert left.is_dir()
        driver.kill()
        driver.wait()
    assert left.is_dir()
    mine = RayFolder()
    assert not left.exists()
    assert mine.path.is_dir()
    mine.close()


def test_what_has_no_owner_or_is_a_link_is_left_alone(parent: Path) -> None:
    (parent / "slipstream-of-an-older-version").mkdir()
    (parent / "elsewhere").mkdir()
    (parent / "elsewhere" / ray_folder.OWNER).touch()
    (parent / "slipstream-link").symlink_to(parent / "elsewhere")
    RayFolder().close()
    assert (parent / "slipstream-of-an-older-version").is_dir()
    assert (parent / "elsewhere" / ray_folder.OWNER).is_file()
