"""A load that shifts from long prompts to long answers, on the same workers: the planner, and every static split.

    scripts/bench/elastic/bench_elastic.py [--out docs/results/elastic]

Real clusters on this machine, one after the other. Each worker gets a slice of the processors of its own (a control
group with a CPU quota, which takes root): workers that share all cores would make any split as good as another. Writes
OUT.json with every request's times, OUT.svg, and the tables of docs/results/elastic.md to the terminal.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import re
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from scripts.bench.elastic.bench_deployment import Deployment, Watched
from scripts.bench.elastic.core_slices import NoSlices, Slices, slices
from scripts.bench.elastic.load_calibration import load_for, measure
from scripts.bench.elastic.offered_load import Load, Phase, requests_of, write_requests
from slipstream.cluster.tools.bench.load.measures import percentile
from slipstream.cluster.tools.report.plot import Mark, Plot, Series
from slipstream.cluster.tools.report.report import COLOURS, STYLE, Report
from slipstream.cluster.tools.report.svg import HEIGHT, WIDTH, draw
from slipstream.cluster.tools.report.table import Table

ROOT = Path(__file__).resolve().parents[3]
PLANNER = "planner"
WINDOW_S = 5.0


def settings_of(arguments: argparse.Namespace, split: str, load: Load) -> dict[str, Any]:
    """The YAML file of a static split as 2P2D, or of the planner, which begins with the first of them."""
    found = re.fullmatch(r"(\d+)P(\d+)D", arguments.splits[0] if split == PLANNER else split)
    if found is None:
        raise SystemExit(f"a split looks like 2P2D, not {split!r}")
    num_prefill, num_decode = int(found[1]), int(found[2])
    dispatch: dict[str, Any] = {"slo": {"ttft_ms": load.ttft_ms, "itl_ms": load.itl_ms}}
    if arguments.local_prefill_max_tokens is not None:
        dispatch["local_prefill_max_tokens"] = arguments.local_prefill_max_tokens
    settings: dict[str, Any] = {
        "model": {"path": str(arguments.model.resolve())},
        "router": {"http": {"port": 0}, "dispatch": dispatch},
        "engine": {"num_threads": 1, "niceness": 0, "kv_cache_mib": 128, "max_step_tokens": arguments.step_tokens},
        "prefill": {"replicas": num_prefill},
        "decode": {"replicas": num_decode},
    }
    if split == PLANNER:
        settings["planner"] = {
            "enabled": True,
            "interval_s": 2.0,
            "settle_s": 4.0,
            "horizon_s": 60.0,
            "min_decode": 1,
            "min_prefill": 0,
            "max_workers": num_prefill + num_decode,
            "margin": 0.25,
        }
    return settings


@dataclass(frozen=True, slots=True)
class Judged:
    """How a deployment did, in all and by phase: good requests a second, and their share."""

    name: str
    goodput_per_s: float
    share: float
    by_phase: tuple[tuple[float, float], ...]
    ttft_p50_ms: float
    ttft_p90_ms: float
    itl_p50_ms: float
    itl_p90_ms: float
    num_requests: int
    num_failed: int


def is_good(one: dict[str, Any], load: Load) -> bool:
    if one["error_kind"] or one["ttft_s"] is None:
        return False
    late_s = max(one["begun_s"] - (one["due_s"] or one["begun_s"]), 0.0)  # the client's own delay counts, too
    itl_s = one["itl_s"] or 0.0
    return bool((one["ttft_s"] + late_s) * 1e3 <= load.ttft_ms and itl_s * 1e3 <= load.itl_ms)


def judged(name: str, watched: Watched, load: Load) -> Judged:
    requests, begin_s, by_phase = watched.requests, 0.0, []
    for phase in load.phases:
        end_s = begin_s + phase.seconds
        here = [is_good(one, load) for one in requests if begin_s <= (one["due_s"] or one["begun_s"]) < end_s]
        by_phase.append((sum(here) / phase.seconds, sum(here) / max(len(here), 1)))
        begin_s = end_s
    good = sum(is_good(one, load) for one in requests)
    ttft = [one["ttft_s"] * 1e3 for one in requests if one["ttft_s"] is not None]
    itl = [one["itl_s"] * 1e3 for one in requests if one["itl_s"] is not None]
    return Judged(
        name,
        good / begin_s,
        good / max(len(requests), 1),
        tuple(by_phase),
        percentile(ttft, 0.5),
        percentile(ttft, 0.9),
        percentile(itl, 0.5),
        percentile(itl, 0.9),
        len(requests),
        sum(bool(one["error_kind"]) for one in requests),
    )


def report(results: Sequence[Judged], seen: dict[str, Watched], load: Load) -> Report:
    columns = ["workers", "goodput/s", "share"]
    columns += [f"{phase.name}: goodput/s" for phase in load.phases]
    columns += ["TTFT p50 ms", "p90", "ITL p50 ms", "p90", "requests", "failed"]
    rows = [
        [
            one.name,
            one.goodput_per_s,
            f"{one.share:.1%}",
            *(f"{per_s:.2f} ({share:.0%})" for per_s, share in one.by_phase),
            one.ttft_p50_ms,
            one.ttft_p90_ms,
            one.itl_p50_ms,
            one.itl_p90_ms,
            one.num_requests,
            one.num_failed,
        ]
        for one in results
    ]
    note = f"Good: TTFT within {load.ttft_ms:g} ms and mean ITL within {load.itl_ms:g} ms."
    shift_s = load.phases[0].seconds
    marks = [Mark(shift_s, "the load shifts", "x")]
    parts: list[Table | Plot] = [Table("Goodput under both levels", columns, rows, note)]
    parts.append(
        Plot(
            "Share of requests within both levels, by when they came",
            "seconds",
            "share",
            [Series(name, *shares(watched, load)) for name, watched in seen.items()],
            "line",
            marks=marks,
        )
    )
    if PLANNER in seen:
        watched = seen[PLANNER]
        times = [at_s for at_s, _, _ in watched.roles]
        prefill, decode = [p for _, p, _ in watched.roles], [d for _, _, d in watched.roles]
        roles = [Series("prefill", times, prefill), Series("decode", times, decode)]
        parts.append(Plot("Workers by role, with the planner", "seconds", "workers", roles, "step", marks=marks))
        decisions = [
            [
                f"{one['unix_s'] - watched.began_unix_s:.0f} s",
                one["reason"],
                f"{one['num_prefill']}P{one['num_decode']}D",
                one["why"],
            ]
            for one in reversed(watched.decisions)
        ]
        parts.append(Table("What the planner changed", ["at", "reason", "to", "why"], decisions))
    statics = [one for one in results if one.name != PLANNER] or list(results)
    best = max(statics, key=lambda one: one.goodput_per_s)
    own = next((one for one in results if one.name == PLANNER), best)
    summary = (
        f"The planner's goodput is {own.goodput_per_s:.2f}/s ({own.share:.0%} of the requests), that of the best "
        f"static split, {best.name}, {best.goodput_per_s:.2f}/s ({best.share:.0%})."
    )
    return Report("Elastic pools: a load that shifts from long prompts to long answers", summary, parts)


def shares(watched: Watched, load: Load) -> tuple[list[float], list[float]]:
    """Of the requests that came in each stretch of `WINDOW_S`."""
    xs, ys, at_s = [], [], 0.0
    while at_s < sum(phase.seconds for phase in load.phases):
        here = [
            is_good(one, load) for one in watched.requests if at_s <= (one["due_s"] or one["begun_s"]) < at_s + WINDOW_S
        ]
        if here:
            xs.append(at_s + WINDOW_S / 2)
            ys.append(sum(here) / len(here))
        at_s += WINDOW_S
    return xs, ys


def standalone_svg(plots: Sequence[Plot]) -> str:
    """The plots below each other in a picture that needs no page around it."""
    parts = []
    for index, plot in enumerate(plots):
        found = re.search(r"<svg[^>]*>(.*)</svg>", draw(plot), re.DOTALL)
        assert found is not None
        names = " · ".join(
            f"<tspan class='s{n}' fill='currentColor'>{s.name}</tspan>" for n, s in enumerate(plot.series)
        )
        top = index * (HEIGHT + 40)
        parts.append(
            f"<g transform='translate(0 {top})'><text x='10' y='14' class='title'>{plot.title}</text>"
            f"<text x='10' y='30' class='l'>{names}</text><g transform='translate(0 34)'>{found[1]}</g></g>"
        )
    height = len(plots) * (HEIGHT + 40)
    style = STYLE.replace("svg { width: 100%; height: auto; display: block; overflow: visible }", "")
    extra = "tspan { color: var(--c) } .title { font-weight: 600; fill: var(--ink) } text { font-family: sans-serif }"
    return (
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {WIDTH} {height}' width='{WIDTH}' height='{height}'>"
        f"<style>{style}\n{COLOURS}\n{extra}</style>"
        f"<rect width='{WIDTH}' height='{height}' style='fill: var(--paper)'/>{''.join(parts)}</svg>\n"
    )


def markdown(table: Table) -> str:
    lines = ["| " + " | ".join(table.columns) + " |", "|" + "---|" * len(table.columns)]
    for row in table.rows:
        lines.append("| " + " | ".join(f"{c:.4g}" if isinstance(c, float) else str(c) for c in row) + " |")
    return "\n".join(lines)


def run(arguments: argparse.Namespace, load: Load) -> tuple[Load, dict[str, Watched]]:
    """The load, which is another one if it was to be set by what the workers can do, and what was seen."""
    seen: dict[str, Watched] = {}
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        given: Slices | None = None
        try:
            given = stack.enter_context(slices(arguments.cores))
        except NoSlices as error:
            print(f"{error}; the workers share all cores", file=sys.stderr)
        if arguments.calibrate:
            load = calibrated(arguments, load, given, Path(folder))
        workload = Path(folder) / "shift.jsonl"
        write_requests(requests_of(load.phases, arguments.seed), workload)
        for split in arguments.only or [*arguments.splits, PLANNER]:
            began_s = time.monotonic()
            with Deployment(split.lower(), settings_of(arguments, split, load), given) as deployment:
                slos = (f"ttft:{load.ttft_ms:g}", f"itl:{load.itl_ms:g}")
                seen[split] = deployment.load(workload, arguments.model, slos)
                if arguments.verbose:
                    print(deployment.said, file=sys.stderr)
            one = judged(split, seen[split], load)
            print(
                f"{split}: {one.goodput_per_s:.2f}/s good ({one.share:.1%}; by phase "
                f"{', '.join(f'{share:.0%}' for _, share in one.by_phase)}), TTFT p50 {one.ttft_p50_ms:.0f} p90 "
                f"{one.ttft_p90_ms:.0f} ms, ITL p50 {one.itl_p50_ms:.1f} p90 {one.itl_p90_ms:.1f} ms, "
                f"{one.num_requests} requests, {one.num_failed} failed, {time.monotonic() - began_s:.0f} s",
                flush=True,
            )
            for decision in reversed(seen[split].decisions):
                print(f"    {decision['unix_s'] - seen[split].began_unix_s:5.0f} s  {decision['why']}", flush=True)
    return load, seen


def calibrated(arguments: argparse.Namespace, load: Load, given: Slices | None, folder: Path) -> Load:
    """The given phases with rates and levels of this machine."""
    prefill, _, decode = arguments.splits[0].partition("P")
    num_workers = int(prefill) + int(decode.rstrip("D"))
    with Deployment("calibration", settings_of(arguments, f"{num_workers - 1}P1D", load), given) as deployment:
        speed = measure(deployment, arguments.model, *load.phases, folder)
    found = load_for(speed, num_workers, *load.phases)
    print(
        f"A worker: {speed.prompt_s * 1e3:.0f} ms for a prompt, {speed.step_s * 1e3:.1f} ms a token of one stream, "
        f"{speed.stream_s * 1e3:.2f} ms more with each further one. The load: "
        + ", then ".join(f"{phase.per_s:g} a second ({phase.isl} / {phase.osl} tokens)" for phase in found.phases)
        + f"; TTFT {found.ttft_ms:g} ms, ITL {found.itl_ms:g} ms.",
        flush=True,
    )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", type=Path, default=ROOT / "models" / "slipstream-demo")
    parser.add_argument("--splits", nargs="*", default=["3P1D", "2P2D", "1P3D"], help="the planner begins as the first")
    parser.add_argument("--only", nargs="*", help=f"of the splits and {PLANNER!r} only these")
    parser.add_argument("--cores", type=float, default=0.35, help="of each worker")
    parser.add_argument("--calibrate", action="store_true", help="rates and levels by what a worker here can do")
    parser.add_argument("--ttft-ms", type=float, default=1000.0)
    parser.add_argument("--itl-ms", type=float, default=30.0)
    parser.add_argument("--step-tokens", type=int, default=256)
    parser.add_argument("--local-prefill-max-tokens", type=int, help="a line instead of the policy's own choice")
    parser.add_argument("--prompts", type=float, nargs=4, default=(60.0, 3.0, 2000, 16), help="s, per s, ISL, OSL")
    parser.add_argument("--answers", type=float, nargs=4, default=(60.0, 3.0, 100, 300), help="s, per s, ISL, OSL")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, help="write OUT.json and OUT.svg")
    parser.add_argument("--from-json", type=Path, nargs="*", help="of earlier runs of one load, instead of running")
    parser.add_argument("--write-workload", type=Path, help="only write the requests, as a trace for `slipstream sim`")
    parser.add_argument("--verbose", action="store_true")
    arguments = parser.parse_args()
    phases = tuple(
        Phase(name, values[0], values[1], int(values[2]), int(values[3]))
        for name, values in (("prompts", arguments.prompts), ("answers", arguments.answers))
    )
    load = Load(phases, arguments.ttft_ms, arguments.itl_ms)
    if arguments.write_workload is not None:
        write_requests(requests_of(phases, arguments.seed), arguments.write_workload)
        return
    if arguments.from_json:
        seen = {}
        for path in arguments.from_json:
            saved = json.loads(path.read_text())
            seen |= {name: Watched(**watched) for name, watched in saved["runs"].items()}
            load = Load(tuple(Phase(**phase) for phase in saved["load"]["phases"]), *saved["load"]["levels_ms"])
    else:
        load, seen = run(arguments, load)
    results = [judged(name, watched, load) for name, watched in seen.items()]
    made = report(results, seen, load)
    print(made.summary)
    for part in made.parts:
        if isinstance(part, Table):
            print(f"\n{part.title}\n\n{markdown(part)}\n{part.note}")
    if arguments.out is not None:
        runs = {name: asdict(watched) for name, watched in seen.items()}
        kept = {"phases": [asdict(phase) for phase in load.phases], "levels_ms": [load.ttft_ms, load.itl_ms]}
        arguments.out.with_suffix(".json").write_text(json.dumps({"load": kept, "runs": runs}))
        plots = [part for part in made.parts if isinstance(part, Plot)]
        arguments.out.with_suffix(".svg").write_text(standalone_svg(plots))


if __name__ == "__main__":
    main()
