"""The tests that need a GPU, and those of the kernels, on the device itself."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

from gpu_checks.setting import Setting

STEP = "tests"
ROOT = Path(__file__).resolve().parents[2]
KERNEL_TESTS = ROOT / "tests" / "kernels" / "gpu"
NUM_PROCESSES = 8  # most of the time goes into compiling kernels
SUMMARY = re.compile(r"^(FAILED|ERROR) (.*)$", re.MULTILINE)
COUNTS = re.compile(r"(\d+) (passed|failed|skipped|error|errors|deselected|xfailed)")


def run(setting: Setting) -> None:
    if importlib.util.find_spec("triton") is None:
        setting.add(STEP, "all", note="skipped: triton is not installed")
    elif setting.is_dry:
        _run(setting, "kernels (collected only)", [str(KERNEL_TESTS), "--collect-only", "-q"])
    else:
        _run(setting, "kernels", [str(KERNEL_TESTS)])
        # Not all of the tests: those of other folders import what a bare machine has not.
        marked = [str(path) for path in sorted((ROOT / "tests").rglob("test_*.py")) if _is_marked(path)]
        _run(setting, "marked gpu", ["-m", "gpu", *marked])


def _is_marked(path: Path) -> bool:
    return "mark.gpu" in path.read_text(encoding="utf-8") and KERNEL_TESTS not in path.parents


def _run(setting: Setting, name: str, arguments: list[str]) -> None:
    """Warnings are no errors here: other versions of the packages warn of other things."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-o", "filterwarnings=default"]
    if importlib.util.find_spec("xdist") is not None and not setting.is_dry:
        command += ["-n", str(NUM_PROCESSES)]
    done = subprocess.run([*command, *arguments], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    print(done.stdout[-6000:], flush=True)
    counts = ", ".join(f"{number} {what}" for number, what in COUNTS.findall(done.stdout[-400:]))
    for kind, test in SUMMARY.findall(done.stdout)[:40]:
        setting.add(STEP, test[:200], note=kind.lower(), failed=True)
    note = counts or f"exit status {done.returncode}"
    setting.add(STEP, f"pytest: {name}", note=note, failed=done.returncode not in (0, 5))
