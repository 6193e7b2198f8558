"""What others install: a wheel that is built from the source distribution, in an environment that does not know of the
checkout. It serves the demo model without a configuration.

The packages that Slipstream needs are this environment's, and the native libraries are those that `scripts/setup` has
compiled: compiling them takes minutes. `scripts/wheel/build_wheel` compiles, and repairs the wheel's platform tag.
"""

from __future__ import annotations

import json
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from scripts.wheel import check_wheel
from tests.e2e.test_smoke import stream, text_of
from tests.support.e2e.serving_cluster import ROOT, ServingCluster

pytestmark = pytest.mark.wheel

TOP_FILES = ("pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE", "NOTICE", "constraints.txt")
FOLDERS = ("slipstream", *check_wheel.LAYERS, "models", "configs")
COMPILED = {name: ROOT / name.removeprefix("slipstream/") for name in check_wheel.NATIVE}
HAS_LIBRARIES = all(path.exists() for path in COMPILED.values())
IS_PURE = (sys.platform, platform.machine()) != ("linux", "x86_64")
BUILD_LIB = f"lib.{sysconfig.get_platform()}-{sys.implementation.cache_tag}"


@pytest.fixture(scope="module")
def source_distribution(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy, so that nothing is left in the checkout."""
    source = tmp_path_factory.mktemp("source")
    for name in TOP_FILES:
        shutil.copy2(ROOT / name, source)
    for name in FOLDERS:
        ignored = shutil.ignore_patterns("__pycache__", "*.so")
        shutil.copytree(ROOT / name, source / name, symlinks=True, ignore=ignored)
    target = tmp_path_factory.mktemp("dist")
    run(source, "-c", f"from setuptools import build_meta; build_meta.build_sdist({str(target)!r})")
    (built,) = target.glob("slipstream-*.tar.gz")
    return built


@pytest.fixture(scope="module")
def wheel(source_distribution: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("unpacked")
    subprocess.run(["tar", "-xzf", str(source_distribution), "-C", str(folder)], check=True)
    (source,) = folder.iterdir()
    for name, compiled in COMPILED.items() if HAS_LIBRARIES else ():
        target = source / "build" / BUILD_LIB / name  # newer than its sources: it is not compiled again
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(compiled, target)
    pip = ("-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir", str(folder))
    run(source, *pip, ".")
    (built,) = folder.glob("slipstream-*.whl")
    return built


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its packages are found in this environment's folder, whose own `.pth` files do not count there: they lead to the
    checkout."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=False, symlinks=True)
    site = Path(sysconfig.get_path("purelib", vars={"base": str(folder), "platbase": str(folder)}))
    (site / "packages.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    run(folder, "-m", "pip", "--python", str(folder), "install", "--no-deps", "--no-index", str(wheel))
    return folder


def run(folder: Path, *arguments: str) -> None:
    command = [sys.executable, *arguments]
    done = subprocess.run(command, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture
def serving(environment: Path, tmp_path: Path) -> Iterator[ServingCluster]:
    """`slipstream serve`, in a folder where another Slipstream lies."""
    other = tmp_path / "here" / "slipstream" / "__init__.py"
    other.parent.mkdir(parents=True)
    other.write_text("raise SystemExit('this is not the Slipstream that was started')\n")
    cluster = ServingCluster(tmp_path / "cluster")
    cluster.command = [str(environment / "bin" / "slipstream"), "serve", "--port=0", f"--name={cluster.name}"]
    cluster.working_directory = tmp_path / "here"
    cluster.environment.pop("PYTHONPATH", None)
    with cluster:
        yield cluster


@pytest.mark.skipif(not HAS_LIBRARIES and not IS_PURE, reason="scripts/setup could not compile the native libraries")
def test_a_wheel_holds_all_modules_data_and_libraries_and_nothing_else(wheel: Path) -> None:
    assert list(check_wheel.wrong_with_wheel(wheel)) == []


def test_a_source_distribution_holds_all_that_a_wheel_is_built_from(source_distribution: Path) -> None:
    assert list(check_wheel.wrong_with_source(source_distribution)) == []


def test_it_serves_the_demo_model_without_a_configuration(serving: ServingCluster, environment: Path) -> None:
    assert "Chosen for " in serving.output
    assert re.search(r"slipstream serve [^\n]*--write my\.yaml", serving.output)
    assert [model["id"] for model in json.loads(serving.get("/v1/models")[1])["data"]] == ["slipstream-demo"]
    body = {"model": "slipstream-demo", "prompt": "def main():", "max_tokens": 12, "temperature": 0}
    assert text_of(stream(serving, "/v1/completions", body))
    site = str(environment / "lib")
    used = {mapped.path for pid in serving.pids("decode-0") for mapped in psutil.Process(pid).memory_maps()}
    assert not [path for path in used if path.startswith(f"{ROOT}/") and "/.venv/" not in path]
    if HAS_LIBRARIES:
        assert [path for path in used if path.startswith(site) and path.endswith(".so") and "/slipstream/" in path]
    assert "this is not the Slipstream" not in serving.logs
