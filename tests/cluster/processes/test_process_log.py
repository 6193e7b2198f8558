"""All that a process writes is a JSON line where that is configured: logging, uvicorn, warnings, what is printed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from slipstream.router.process.log_format import VARIABLE

SAYS = """
import logging, sys, warnings
import uvicorn
logging.getLogger("slipstream.x").warning("ours")
uvicorn.Config(None, log_config=None)
logging.getLogger("uvicorn.error").error("of uvicorn")
warnings.warn("of a library")
"""
PRINTS = "print('printed'); print('two\\nlines', file=sys.stderr)"
CLUSTER = "from slipstream.cluster.processes.process_log import redirect_output; redirect_output('p', {log!r}, 'json')"
ALONE = "from slipstream.router.process.log_format import log_to_stderr; log_to_stderr('p')"


def lines_of(program: str) -> list[dict[str, object]]:
    """Of stderr, each of which is an object."""
    environment = {**os.environ, VARIABLE: "json", "SLIPSTREAM_LOG_LEVEL": "info"}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, timeout=60, check=True)
    return [json.loads(line) for line in done.stderr.splitlines()]


def test_every_line_of_a_process_of_a_cluster_is_json(tmp_path: Path) -> None:
    log = tmp_path / "p.log"
    assert lines_of(f"{CLUSTER.format(log=str(log))}\n{SAYS}\n{PRINTS}") == []
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert {line["process"] for line in lines} == {"p"}
    said = {line["logger"]: line["message"] for line in lines}
    assert (said["slipstream.x"], said["uvicorn.error"], said["stdout"]) == ("ours", "of uvicorn", "printed")
    printed = [line["message"] for line in lines if line["logger"] == "stderr"]
    assert printed[-2:] == ["two", "lines"]
    assert any("of a library" in message for message in printed)


def test_every_line_of_a_process_that_was_started_by_hand_is_json() -> None:
    lines = lines_of(f"{ALONE}\n{SAYS}")
    assert [line["logger"] for line in lines] == ["slipstream.x", "uvicorn.error", "py.warnings"]
    assert "of a library" in str(lines[-1]["message"])
