"""The tests that need a GPU, and those of the kernels, on the device itself."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

from gpu_checks.setting import Setting

STEP = "tests"
ROOT = Path(__file__).resolve().parents[2]
KERNEL_TESTS = ROOT / "tests" / "kernels" / "gpu"
COMPILED_ELSEWHERE = KERNEL_TESTS / "test_sm90.py"  # needs no GPU
MAX_PROCESSES = 16  # most of the time goes into compiling kernels
SUMMARY = re.compile(r"^(FAILED|ERROR) (.*)$", re.MULTILINE)
COUNTS = re.compile(r"(\d+) (passed|failed|skipped|error|errors|deselected|xfailed)")


def run(setting: Setting) -> None:
    if importlib.util.find_spec("triton") is None:
        setting.add(STEP, "all", note="skipped: triton is not installed")
    elif setting.is_dry:
        _run(setting, "kernels (collected only)", [str(KERNEL_TESTS), "--collect-only", "-q"])
    else:
        _run(setting, "kernels", [str(KERNEL_TESTS), f"--ignore={COMPILED_ELSEWHERE}"])
        # Not all of the tests: those of other folders import what a bare machine has not.
        marked = [str(path) for path in sorted((ROOT / "tests").rglob("test_*.py")) if _is_marked(path)]
        _run(setting, "marked gpu", ["-m", "gpu", *marked])


def _is_marked(path: Path) -> bool:
    return "mark.gpu" in path.read_text(encoding="utf-8") and KERNEL_TESTS not in path.parents


def _run(setting: Setting, name: str, arguments: list[str]) -> None:
    """Warnings are no errors here: other versions of the packages warn of other things. A test whose kernel hangs is
    ended with its process: no signal reaches it. What the tests say is in a file as they say it."""
    command = [sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider", "-o", "filterwarnings=default"]
    if importlib.util.find_spec("pytest_timeout") is not None:
        command += ["-o", "timeout_method=thread"]
    if importlib.util.find_spec("xdist") is not None and not setting.is_dry:
        command += ["-n", str(min(MAX_PROCESSES, os.cpu_count() or 1))]
    path = setting.book.path.with_name(f"tests_{name.split()[0]}.log")
    # Tests ask Triton to interpret where they see no driver's device file; here they are to run on the device or fail.
    environment = os.environ if setting.is_dry else {**os.environ, "TRITON_INTERPRET": "0"}
    with path.open("w", encoding="utf-8") as log:
        status = subprocess.run(
            [*command, *arguments], cwd=ROOT, env=environment, stdout=log, stderr=subprocess.STDOUT
        ).returncode
    said = path.read_text(encoding="utf-8", errors="replace")
    print(said[-6000:], flush=True)
    counts = ", ".join(f"{number} {what}" for number, what in COUNTS.findall(said[-400:]))
    for kind, test in SUMMARY.findall(said)[:40]:
        setting.add(STEP, test[:200], note=kind.lower(), failed=True)
    note = counts or f"exit status {status}"
    setting.add(STEP, f"pytest: {name}", note=note, failed=status not in (0, 5))
