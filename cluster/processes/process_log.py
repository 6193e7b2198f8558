"""Sends all output of a process of the cluster, including that of native libraries, to one readable log file."""

from __future__ import annotations

import faulthandler
import logging
import os
import sys

from slipstream.cluster.processes.printed_lines import PrintedLines
from slipstream.router.process.log_format import VARIABLE, JsonFormatter, formatter
from slipstream.router.process.log_level import log_level


def redirect_output(name: str, path: str | None, log_format: str | None = None) -> None:
    """Sends logging, stdout and stderr of this process to a file (None: to where stderr already goes).
    `log_format` is also that of the processes that it starts; None: as the environment says.

    File descriptors 1 and 2 are replaced, not only Python's objects: UCX and CUDA print by themselves.
    """
    if log_format is not None:
        os.environ[VARIABLE] = log_format
    if path is not None:
        sys.stdout.flush()
        sys.stderr.flush()
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(fd, 1)
        os.dup2(fd, 2)
        os.close(fd)
        sys.stdout = open(1, "w", buffering=1, closefd=False)  # noqa: SIM115 - lives as long as the process
        sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115
    handler = logging.StreamHandler(sys.stderr)
    text = f"%(asctime)s.%(msecs)03d {name} %(levelname)s %(message)s"
    handler.setFormatter(formatter(name, text, "%H:%M:%S"))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(log_level())
    faulthandler.enable(sys.stderr)
    if path is not None and isinstance(handler.formatter, JsonFormatter):
        sys.stdout = PrintedLines("stdout", 1, handler)
        sys.stderr = PrintedLines("stderr", 2, handler)
