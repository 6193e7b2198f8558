"""Says what is wrong with a wheel or a source distribution: `python scripts/wheel/check_wheel.py FILE...`, in a
checkout.

Nothing but the standard library; used by `scripts/wheel/build_wheel` and by the tests.
"""

from __future__ import annotations

import platform
import re
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LAYERS = ("cluster", "workers", "router", "kv_transfer", "kernels")
NATIVE = tuple(
    f"slipstream/{folder}/_{v}.so" for folder in ("kernels/cpu", "kv_transfer/native") for v in ("avx512", "avx2")
)
NAME = re.compile(r"slipstream-[\w.]+-py3-none-(any|(manylinux_\d+_\d+|linux)_x86_64)\.whl")
MAX_BYTES = 20 << 20

NOT_SHIPPED = {"compose", "envoy", "helm", "k8s", "systemd"}  # of configs: what a deployment takes from the sources
DATA_SUFFIXES = frozenset({".yaml", ".json", ".pbtxt", ".py", ".txt"})  # of files in configs


def modules() -> set[str]:
    """As they are called in a wheel."""
    return {f"slipstream/{path.relative_to(ROOT)}" for layer in LAYERS for path in (ROOT / layer).rglob("*.py")}


def data() -> set[str]:
    """What is not code."""
    configs = [
        path
        for path in (ROOT / "configs").rglob("*.*")
        if not NOT_SHIPPED & set(path.parts) and (path.suffix in DATA_SUFFIXES or path.name == ".gitkeep")
    ]
    model = [path for path in (ROOT / "models" / "slipstream-demo").iterdir() if path.is_file()]
    page = [path for path in (ROOT / "router" / "api" / "ui" / "assets").rglob("*") if path.is_file()]
    return {f"slipstream/{path.relative_to(ROOT)}" for path in (*configs, *model, *page)} | {"slipstream/py.typed"}


def native_sources() -> set[str]:
    return {f"slipstream/{path.relative_to(ROOT)}" for layer in LAYERS for path in (ROOT / layer).rglob("*.?pp")}


def wrong_with_wheel(path: Path) -> Iterator[str]:
    match = NAME.fullmatch(path.name)
    if match is None:
        yield f"it is called {path.name}, which names a platform that this project builds no wheel for"
        return
    with zipfile.ZipFile(path) as archive:
        names = {name for name in archive.namelist() if not name.endswith("/")}
    info = {name for name in names if ".dist-info/" in name}
    native = set(NATIVE) if match[1] != "any" else set()
    if match[1] == "any" and (sys.platform, platform.machine()) == ("linux", "x86_64"):
        yield "it has no native libraries, which x86-64 Linux is to have"
    expected = modules() | data() | native | {"slipstream/__init__.py"}
    yield from _difference(names - info, expected)
    for licence in ("LICENSE", "NOTICE"):
        if not any(name.endswith(f"/licenses/{licence}") for name in info):
            yield f"it has no {licence}"


def wrong_with_source(path: Path) -> Iterator[str]:
    with tarfile.open(path) as archive:
        names = {member.name.partition("/")[2] for member in archive.getmembers() if member.isfile()}
    around = {"PKG-INFO", "setup.cfg", "pyproject.toml", "setup.py", "README.md", "MANIFEST.in", "constraints.txt"}
    expected = modules() | data() | native_sources() | around | {"slipstream/__init__.py", "LICENSE", "NOTICE"}
    yield from _difference({name for name in names if not name.startswith("slipstream.egg-info/")}, expected)


def _difference(names: set[str], expected: set[str]) -> Iterator[str]:
    for what, some in (("lacks", expected - names), ("should not have", names - expected)):
        if some:
            yield f"it {what} {', '.join(sorted(some)[:5])}" + (f" and {len(some) - 5} more" if len(some) > 5 else "")


def main() -> int:
    failed = False
    for path in map(Path, sys.argv[1:]):
        wrong = list(wrong_with_wheel(path) if path.suffix == ".whl" else wrong_with_source(path))
        if path.stat().st_size > MAX_BYTES:
            wrong.append(f"it has {path.stat().st_size >> 20} MiB, more than {MAX_BYTES >> 20}")
        for problem in wrong:
            print(f"{path.name}: {problem}", file=sys.stderr)
        failed = failed or bool(wrong)
        if not wrong:
            print(f"{path}: ok, {path.stat().st_size / (1 << 20):.1f} MiB")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
