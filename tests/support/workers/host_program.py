"""An instance host as a program of its own."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path


@asynccontextmanager
async def host_program(config: Path) -> AsyncIterator[asyncio.subprocess.Process]:
    """Killed at the end, unless it has ended."""
    command = [sys.executable, "-m", "slipstream.workers.instances.host_main", "--config", str(config)]
    program = await asyncio.create_subprocess_exec(*command, stderr=subprocess.PIPE)
    try:
        yield program
    finally:
        if program.returncode is None:
            program.kill()
        await program.communicate()
