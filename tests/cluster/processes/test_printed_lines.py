"""What a process of the cluster prints, in its log of JSON lines."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

PRINTS = """
import logging, sys
from slipstream.cluster.processes.process_log import redirect_output
redirect_output("driver", sys.argv[1], "json")
print("printed", end=" ")
print("in parts\\nsecond")
print("\\x1b[33m(raylet)\\x1b[0m died", file=sys.stderr, flush=True)
logging.getLogger("a").warning("logged")
logging.getLogger("a").warning("%d", "no number")
raise ValueError("not caught")
"""


def test_every_line_that_python_prints_is_json(tmp_path: Path) -> None:
    log = tmp_path / "driver.log"
    done = subprocess.run([sys.executable, "-c", PRINTS, str(log)], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("", "")
    lines = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
    shown = [(line["logger"], line["message"]) for line in lines]
    assert shown[:4] == [
        ("stdout", "printed in parts"),
        ("stdout", "second"),
        ("stderr", "\x1b[33m(raylet)\x1b[0m died"),
        ("a", "logged"),
    ]
    assert shown[-1] == ("stderr", "ValueError: not caught")
    assert {line["process"] for line in lines} == {"driver"}
