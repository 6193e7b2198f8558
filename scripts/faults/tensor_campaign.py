"""Breaks a cluster that serves tensor models, and says what came of it.

    scripts/setup --dev
    .venv/bin/python scripts/faults/tensor_campaign.py OPTIONS

    --minutes 4 --seed 1                   a real cluster under load and faults
    --minutes 4 --faults router,host       only these: instance freeze host router both driver worker
    --minutes 4 --graphs                   also ensembles, a language model, models in ONNX, endpoints and versions
    --soak --requests 20000 --loads 100    no faults, one kind of request after the other: is memory flat?

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

from tests.support.tensor_faults.tensor_campaign import GRAPH_MIX, MIX, TensorPlan, run_tensor_cluster
from tests.support.tensor_faults.tensor_soak import KINDS, Soak, run_soak


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, help="by default a random one")
    parser.add_argument("--minutes", type=float, default=4.0, help="how long faults go on")
    parser.add_argument("--graphs", action="store_true", help="with ensembles, a language model, ONNX and versions")
    parser.add_argument("--faults", help="kinds, with commas; one named twice comes more often")
    parser.add_argument("--pause", type=float, default=5.0, help="seconds between two faults, at most")
    parser.add_argument("--clients", type=int, default=4, help="of each protocol")
    parser.add_argument("--no-reloads", action="store_true", help="load and unload nothing meanwhile")
    parser.add_argument("--keep", type=Path, help="a new folder for the logs, instead of a temporary one")
    parser.add_argument("--soak", action="store_true", help="no faults")
    parser.add_argument("--requests", type=int, default=20_000, help="of each kind (--soak); of costly ones fewer")
    parser.add_argument("--loads", type=int, default=100, help="and unloads (--soak)")
    parser.add_argument("--kinds", default=",".join(KINDS), help="of requests, with commas (--soak)")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # the cluster is to end with us
    with tempfile.TemporaryDirectory(prefix="slipstream-faults-") as folder:
        return (soak if options.soak else campaign)(options, options.keep or Path(folder))


def soak(options: argparse.Namespace, folder: Path) -> int:
    kinds = tuple(filter(None, options.kinds.split(",")))
    outcome = Soak(options.seed or 0, options.requests, options.loads, kinds)
    run_soak(outcome, folder, lambda line: print(line, flush=True))
    print("\n".join(f"WRONG {what}" for what in outcome.wrong[:30]))
    return 1 if outcome.wrong else 0


def faults(options: argparse.Namespace) -> tuple[str, ...]:
    if options.faults is None:
        return GRAPH_MIX if options.graphs else MIX
    return tuple(filter(None, options.faults.split(",")))


def campaign(options: argparse.Namespace, folder: Path) -> int:
    plan = TensorPlan(
        seed=options.seed if options.seed is not None else secrets.randbelow(1 << 20),
        seconds=60 * options.minutes,
        faults=faults(options),
        num_clients=options.clients,
        reloads=not options.no_reloads,
        graphs=options.graphs,
        pause_s=(0.3 * options.pause, options.pause),
    )
    print(f"seed {plan.seed}", flush=True)
    outcome = run_tensor_cluster(plan, folder)
    for time_s, what in outcome.struck:
        print(f"  {time_s:7.1f} s  {what}")
    print("\n".join(filter(None, outcome.lines())))
    return 1 if outcome.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
