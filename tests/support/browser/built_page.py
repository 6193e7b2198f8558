"""The built page, which browsers load from a router: that of the checkout, or else one built here."""

from __future__ import annotations

import fcntl
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
SOURCES = ROOT / "router/ui"
ASSETS = ROOT / "router/api/ui/assets"
LOCK = ROOT / "build/page.lock"  # tests run in several processes
AXE = SOURCES / "node_modules/axe-core/axe.min.js"


def require_page() -> None:
    """Builds the page if there is none. Skips the test if that is impossible here."""
    with _one_at_a_time():
        if not (ASSETS / "index.html").exists():
            _require_packages()
            _npm("run", "build")


def require_axe() -> Path:
    """The program that finds faults of accessibility. Skips the test if it cannot be had here."""
    with _one_at_a_time():
        if not AXE.exists():
            _require_packages()
    return AXE


@contextmanager
def _one_at_a_time() -> Iterator[None]:
    LOCK.parent.mkdir(exist_ok=True)
    with LOCK.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _require_packages() -> None:
    if shutil.which("npm") is None:
        pytest.skip("npm is not on PATH, and the page has not been built")
    if not AXE.exists():
        _npm("ci", "--no-audit", "--no-fund")


def _npm(*arguments: str) -> None:
    ran = subprocess.run(["npm", *arguments], cwd=SOURCES, capture_output=True, text=True, timeout=300)
    assert ran.returncode == 0, f"npm {' '.join(arguments)}: {ran.stdout}{ran.stderr}"
