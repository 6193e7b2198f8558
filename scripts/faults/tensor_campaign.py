"""Breaks a cluster that serves tensor models, and says what came of it.

    scripts/setup --dev
    .venv/bin/python scripts/faults/tensor_campaign.py OPTIONS

    --minutes 4 --seed 1                   a real cluster under load and faults
    --minutes 4 --faults router,host       only these: instance freeze host router both driver

Exits with 1 if anything was wrong. docs/results/faults.md says what to expect.
"""

from __future__ import annotations

import argparse
import secrets
import signal
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.support.tensor_faults.tensor_campaign import MIX, TensorPlan, run_tensor_cluster


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, help="by default a random one")
    parser.add_argument("--minutes", type=float, default=4.0, help="how long faults go on")
    parser.add_argument("--faults", default=",".join(MIX), help="kinds, with commas; one named twice comes more often")
    parser.add_argument("--clients", type=int, default=4, help="of each protocol")
    parser.add_argument("--no-reloads", action="store_true", help="load and unload nothing meanwhile")
    parser.add_argument("--keep", type=Path, help="a new folder for the logs, instead of a temporary one")
    options = parser.parse_args()
    plan = TensorPlan(
        seed=options.seed if options.seed is not None else secrets.randbelow(1 << 20),
        seconds=60 * options.minutes,
        faults=tuple(filter(None, options.faults.split(","))),
        num_clients=options.clients,
        reloads=not options.no_reloads,
    )
    print(f"seed {plan.seed}", flush=True)
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # the cluster is to end with us
    with tempfile.TemporaryDirectory(prefix="slipstream-faults-") as folder:
        outcome = run_tensor_cluster(plan, options.keep or Path(folder))
    for time_s, what in outcome.struck:
        print(f"  {time_s:7.1f} s  {what}")
    print("\n".join(filter(None, outcome.lines())))
    return 1 if outcome.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
