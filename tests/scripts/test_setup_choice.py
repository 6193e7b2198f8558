"""`scripts/setup` takes the first Python on the PATH that will do, another one only where that is clearly faster."""

import os
import shutil
import stat
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

# Answers like a Python: with its version, what it thinks of the range and of venv; the benchmark with its speed.
FAKE = """#!/bin/sh
case "$*" in
    *print*) echo {version} ;;
    *sys.exit*) exit {refused} ;;
    *ensurepip*) exit {no_venv} ;;
    *interpreter_speed*) echo {us} ;;
    *install.py*) echo "installed by {name}" ;;
esac
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    root = tmp_path / "project"
    for name in ("scripts", "kernels/cpu", "kv_transfer/native", "bin"):
        (root / name).mkdir(parents=True)
    for name in ("pyproject.toml", "constraints.txt", "setup.py", "kernels/cpu/a.cpp", "kv_transfer/native/a.cpp"):
        (root / name).touch()
    for name in ("setup", "install.py", "interpreter_speed.py"):
        shutil.copy(ROOT / "scripts" / name, root / "scripts" / name)
    # Without those that setup knows by their full path, only the fakes are there.
    setup = root / "scripts" / "setup"
    setup.write_text(setup.read_text().replace("/usr/bin/python3 /usr/local/bin/python3", ""))
    for tool in ("sh", "dirname", "cat", "cksum", "rm"):
        (root / "bin" / tool).symlink_to(shutil.which(tool) or tool)
    return root


def add_python(
    project: Path, name: str, us: int, version: str = "3.11", supported: bool = True, venv: bool = True
) -> None:
    file = project / "bin" / name
    file.write_text(FAKE.format(name=name, us=us, version=version, refused=int(not supported), no_venv=int(not venv)))
    file.chmod(file.stat().st_mode | stat.S_IXUSR)


def setup(project: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHON"}
    return subprocess.run(
        ["sh", str(project / "scripts" / "setup")],
        env=inherited | {"PATH": str(project / "bin")} | environment,
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_first_python_stays_where_another_is_hardly_faster(project: Path) -> None:
    add_python(project, "python3", us=1000)
    add_python(project, "python3.12", us=900, version="3.12")
    assert setup(project).stdout == "installed by python3\n"


def test_a_clearly_faster_python_is_taken_and_named(project: Path) -> None:
    add_python(project, "python3", us=1200)
    add_python(project, "python3.11", us=940)
    output = setup(project).stdout
    assert "taking python3.11" in output
    assert "PYTHON=python3 scripts/setup" in output
    assert output.endswith("installed by python3.11\n")


def test_the_python_that_was_asked_for_is_taken_however_slow(project: Path) -> None:
    add_python(project, "python3", us=5000)
    add_python(project, "python3.11", us=900)
    assert setup(project, PYTHON="python3").stdout == "installed by python3\n"


def test_what_is_too_old_or_has_no_venv_does_not_count_however_fast(project: Path) -> None:
    add_python(project, "python3", us=10, version="3.10", supported=False)
    add_python(project, "python3.13", us=20, version="3.13", venv=False)
    add_python(project, "python3.12", us=1000, version="3.12")
    assert setup(project).stdout == "installed by python3.12\n"


def test_where_no_python_will_do_those_that_were_found_are_named(project: Path) -> None:
    add_python(project, "python3", us=10, version="3.10", supported=False)
    done = setup(project)
    assert done.returncode == 1
    assert "3.11, 3.12 or 3.13" in done.stderr
    assert "python3 (3.10)" in done.stderr
