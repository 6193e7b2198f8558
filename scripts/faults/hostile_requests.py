"""Asks a cluster what no server should be asked, and says what it answers.

    scripts/setup --dev
    .venv/bin/python scripts/faults/hostile_requests.py [--only TEXT]

Exits with 1 if a request was not refused, if it took long, much memory or the time of others, or if something was left.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.support.hostile.hostile_run import run_hostile


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="requests with this in their names")
    parser.add_argument("--keep", type=Path, help="a new folder for the logs, instead of a temporary one")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # the cluster is to end with us
    with tempfile.TemporaryDirectory(prefix="slipstream-hostile-") as folder:
        outcome = run_hostile(options.keep or Path(folder), options.only, lambda line: print(line, flush=True))
    print("\n".join(outcome.lines()))
    return 1 if outcome.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
