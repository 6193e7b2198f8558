"""Runs a client, and leaves nothing of it behind."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path

TIMEOUT_S = 180.0


def output_of(command: Sequence[str], folder: Path, environment: dict[str, str], log: Path) -> str:
    """What a program prints; its errors go to the end of `log`. Raises RuntimeError if it fails or takes too long."""
    with log.open("a") as errors:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env={**os.environ, "PWD": str(folder), **environment},  # some take their folder from PWD
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            start_new_session=True,
        )
        try:
            out, _ = process.communicate(timeout=TIMEOUT_S)
        except subprocess.TimeoutExpired:
            raise RuntimeError(f"{Path(command[0]).name} did not end within {TIMEOUT_S:g} s") from None
        finally:
            with contextlib.suppress(ProcessLookupError):  # its children, if there are any left
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    with log.open("a") as file:
        file.write(out)
    if process.returncode:
        raise RuntimeError(f"{Path(command[0]).name} ended with {process.returncode}: {out[-500:]}")
    return out
