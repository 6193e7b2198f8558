"""What pip installs: `slipstream` with all its subpackages, though they are symbolic links in the checkout."""

from __future__ import annotations

import platform
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
LAYERS = ("cluster", "workers", "router", "kv_transfer", "kernels")
NATIVE_SOURCES = (Path("kernels/cpu/team.cpp"), Path("kv_transfer/native/page_copy.cpp"))
CAN_COMPILE = sys.platform == "linux" and platform.machine() == "x86_64" and shutil.which("g++") is not None
NATIVE = ("kernels/cpu", "kv_transfer/native")
VARIANTS = ("avx512", "avx2") if CAN_COMPILE else ()


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy, so that nothing is left in the checkout. Of each native library one source is enough here: all
    of them take half a minute to compile, and `scripts/setup` has done that."""
    source = tmp_path_factory.mktemp("source")
    for name in ("pyproject.toml", "README.md", "setup.py"):
        shutil.copy(ROOT / name, source)
    for name in ("slipstream", *LAYERS):
        ignored = shutil.ignore_patterns("__pycache__", "*.cpp", "*.so")
        shutil.copytree(ROOT / name, source / name, symlinks=True, ignore=ignored)
    for path in NATIVE_SOURCES:
        shutil.copy(ROOT / path, source / path)
    target = tmp_path_factory.mktemp("wheel")
    pip(source, "wheel", "--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir", str(target), ".")
    (built,) = target.glob("slipstream-*.whl")
    return built


def pip(folder: Path, *arguments: str) -> None:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments]
    done = subprocess.run(command, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_wheel_holds_every_module_under_slipstream_and_nothing_beside_it(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    modules = {f"slipstream/{path.relative_to(ROOT)}" for layer in LAYERS for path in (ROOT / layer).rglob("*.py")}
    libraries = {f"slipstream/{folder}/_{variant}.so" for folder in NATIVE for variant in VARIANTS}
    assert names == {"slipstream/__init__.py", *modules, *libraries}


def test_an_installed_wheel_is_importable_without_the_checkout(wheel: Path, tmp_path: Path) -> None:
    pip(tmp_path, "install", "--no-deps", "--no-index", "--target", str(tmp_path / "site"), str(wheel))
    code = "import slipstream.cluster.cli as cli, slipstream.router.messages as m; print(cli.__file__, m.__file__)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={"PYTHONPATH": str(tmp_path / "site")},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == [
        str(tmp_path / "site" / "slipstream" / "cluster" / "cli.py"),
        str(tmp_path / "site" / "slipstream" / "router" / "messages" / "__init__.py"),
    ]


def test_this_environment_imports_slipstream_from_the_checkout_wherever_it_is(tmp_path: Path) -> None:
    code = "import slipstream.kv_transfer.ticket as ticket; print(ticket.__file__)"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(ROOT / "slipstream" / "kv_transfer" / "ticket.py")
