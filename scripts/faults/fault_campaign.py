"""Breaks things and says what came of it; every run can be had again from its seed.

    scripts/setup --dev
    .venv/bin/python scripts/faults/fault_campaign.py OPTIONS

    --minutes 4 --seed 1                   a real cluster under load and faults
    --minutes 4 --faults kill,router       only these: kill freeze reset cut-pages router
                                           stop-router driver ray operate disk
    --minutes 15 --soak                    load without faults: is memory flat?
    --virtual --seeds 10000                the same cores in virtual time, one world a seed

Exits with 1 if anything was wrong. docs/results/faults.md says what to expect.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import signal
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.support.faults.cluster_campaign import LEASE_S, MIX, Outcome, Plan, run_cluster
from tests.support.faults.virtual_campaign import Report, run_campaign

NUM_SEEDS_TOLD = 100


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--virtual", action="store_true", help="worlds in virtual time instead of a real cluster")
    parser.add_argument("--seeds", type=int, default=1000, help="how many worlds (--virtual)")
    parser.add_argument("--seed", type=int, help="the first seed; by default 0 in virtual time, else a random one")
    parser.add_argument("--processes", type=int, default=len(os.sched_getaffinity(0)), help="(--virtual)")
    parser.add_argument("--minutes", type=float, default=4.0, help="how long faults go on")
    parser.add_argument("--faults", default=",".join(MIX), help="kinds, with commas; one named twice comes more often")
    parser.add_argument("--soak", action="store_true", help="no faults")
    parser.add_argument("--clients", type=int, default=12, help="requests at a time")
    parser.add_argument("--tp", type=int, default=1, help="ranks of a prefill group")
    parser.add_argument("--prefill", type=int, default=2, help="prefill groups")
    parser.add_argument("--frontends", "--fronts", type=int, default=1, help="processes that face clients")
    parser.add_argument("--drawn", action="store_true", help="mostly several choices with a seed of the router's")
    parser.add_argument("--kv-cache-mib", type=int, default=24, help="pages of each worker; few mean preemptions")
    parser.add_argument("--transport", default="auto", choices=("auto", "shared_memory", "ucx", "nccl"))
    parser.add_argument("--corrupt-every", type=int, default=0, help="flip a byte of every n-th message of pages")
    parser.add_argument(
        "--lease-s", type=float, default=LEASE_S, help="of workers; longer where others need the machine"
    )
    parser.add_argument("--json", type=Path, help="where to write all that was seen")
    options = parser.parse_args()
    return virtual(options) if options.virtual else real(options)


def virtual(options: argparse.Namespace) -> int:
    first = options.seed or 0
    began_s = time.monotonic()

    def progress(report: Report) -> None:
        if report.num_seeds % 100 == 0:
            print(f"{report.num_seeds} seeds, {len(report.failures)} failed", flush=True)

    report = run_campaign(range(first, first + options.seeds), options.processes, progress)
    took_s = time.monotonic() - began_s
    print(
        f"{report.num_seeds} seeds from {first} on in {took_s:.0f} s ({report.num_seeds / took_s:.1f} a second, "
        f"{report.cpu_s:.0f} s of CPU, {report.num_events} events): {len(report.failures)} failed"
    )
    for what, count in sorted(report.seen.items()):
        print(f"  {count:8} {what}")
    for seed, trace in report.failures[:5]:
        print(f"---- seed {seed}\n{trace}")
    more = len(report.failures) - NUM_SEEDS_TOLD
    print("failed:", *(seed for seed, _ in report.failures[:NUM_SEEDS_TOLD]), f"and {more} more" if more > 0 else "")
    return 1 if report.failures else 0


def real(options: argparse.Namespace) -> int:
    plan = Plan(
        seed=options.seed if options.seed is not None else secrets.randbelow(1 << 20),
        seconds=60 * options.minutes,
        faults=() if options.soak else tuple(options.faults.split(",")),
        num_clients=options.clients,
        tp=options.tp,
        num_prefill=options.prefill,
        transport=options.transport,
        corrupt_every=options.corrupt_every,
        lease_s=options.lease_s,
        frontends=options.frontends,
        kv_cache_mib=options.kv_cache_mib,
        drawn=options.drawn,
    )
    print(f"seed {plan.seed}", flush=True)
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # the cluster is to end with us
    with tempfile.TemporaryDirectory(prefix="slipstream-faults-") as folder:
        outcome = run_cluster(plan, Path(folder))
    show(outcome)
    if options.json is not None:
        options.json.write_text(json.dumps(outcome.as_json(), indent=1))
    return 1 if outcome.wrong else 0


def show(outcome: Outcome) -> None:
    for time_s, what in outcome.struck:
        print(f"  {time_s:7.1f} s  {what}")
    print("\n".join(outcome.lines()))


if __name__ == "__main__":
    sys.exit(main())
