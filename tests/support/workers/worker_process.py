"""Runs `slipstream.workers.main` as what it is: a program of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Any

from slipstream.router.protocol.messages import Role

END_TIMEOUT_S = 30.0
PAGE_TOKENS = 16

ENGINE: dict[str, Any] = {
    "dtype": "float32",
    "device": "cpu",
    "page_tokens": PAGE_TOKENS,
    "num_pages": 160,
    "max_num_seqs": 8,
    "max_step_tokens": 96,
    "num_threads": 1,
}
TRANSFER: dict[str, Any] = {"slab_pages": 4, "staging_mib": 4, "lease_s": 10.0}


class WorkerProcess:
    """A worker program that is started by `with` and gone afterwards, whatever happened."""

    def __init__(
        self,
        folder: Path,
        name: str,
        role: Role,
        model_dir: Path,
        router_port: int,
        *,
        tp: int = 1,
        engine: dict[str, Any] | None = None,
        transfer: dict[str, Any] | None = None,
        **settings: Any,
    ) -> None:
        self.name = name
        self._config = folder / f"{name}.json"
        self._log = folder / f"{name}.log"
        config = {
            "name": name,
            "role": role,
            "model": "tiny",
            "model_dir": str(model_dir),
            "router_host": "127.0.0.1",
            "router_port": router_port,
            "token": "secret",
            "tp": tp,
            "engine": {**ENGINE, **(engine or {})},
            "transfer": {**TRANSFER, **(transfer or {})},
            **settings,
        }
        self._config.write_text(json.dumps(config))
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> WorkerProcess:
        command = [sys.executable, "-m", "slipstream.workers.main", "--config", str(self._config)]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(command, stderr=log, env={**os.environ, "OMP_NUM_THREADS": "1"})
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.process.kill()  # its other ranks, if any, end because it does
        self.process.wait()

    @property
    def process(self) -> subprocess.Popen[bytes]:
        assert self._process is not None
        return self._process

    @property
    def log(self) -> str:
        return self._log.read_text()

    def kill(self) -> None:
        """As the kernel would, when memory runs out."""
        self.process.kill()
        self.process.wait()

    def terminate(self) -> None:
        self.process.send_signal(signal.SIGTERM)

    def wait(self) -> int:
        """The exit code."""
        return self.process.wait(END_TIMEOUT_S)

    def rank_pids(self) -> list[int]:
        """Process ids of the other ranks, children of the leader."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text()
        return [int(pid) for pid in children.split()]
