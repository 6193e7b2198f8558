"""One example program, run to its end."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Sequence

TIMEOUT_S = 60.0


def run_example(title: str, command: Sequence[str]) -> bool:
    """Prints a line that says how it ended. Returns whether it ended with 0 in time."""
    began = time.monotonic()
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
        is_good, lines = done.returncode == 0, (done.stdout + done.stderr).strip().splitlines()
    except subprocess.TimeoutExpired:
        is_good, lines = False, [f"no end after {TIMEOUT_S:.0f} s"]
    outcome = "ok" if is_good else f"FAILED: {' / '.join(lines[-3:])}"
    print(f"{title:75} {time.monotonic() - began:5.1f} s  {outcome}", flush=True)
    return is_good
