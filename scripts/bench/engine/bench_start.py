"""How long a worker takes from nothing to its first token: native models, and the same ones by the general path.

    python scripts/bench/engine/bench_start.py --models S-bf16,M-bf16

Each start is a process of its own. The general path starts twice: with empty caches, and then with what the first
start has kept. Figures are CPU seconds of all threads of the process, and its parts by name. `description` is another
process, which the cluster starts once for a model.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT), str(Path(__file__).parent)]

STARTS = {"native": "native", "general, first": "transformers", "general, later": "transformers"}
# Functions whose time is shown, by module and name.
PARTS = {
    "weights": ("checked_model", "load_shared"),
    "calls of attention": ("checked_model", "recorded_calls"),
    "eager scores": ("checked_model", "eager_scores"),
    "graph": ("checked_model", "fused_graph"),
    "packing": ("stored_graph", "GraphStore.take"),
    "self-check": ("checked_model", "check_scores"),
    "kept graph": ("stored_graph", "GraphStore.load"),
}

Times = dict[str, float]


def timed(times: Times, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        begin = time.process_time()
        try:
            return function(*args, **kwargs)
        finally:
            times[name] = times.get(name, 0.0) + time.process_time() - begin

    return run


def time_parts(times: Times, modules: dict[str, Any]) -> None:
    for name, (module_name, path) in PARTS.items():
        if module_name in modules:
            *owners, last = path.split(".")
            owner = modules[module_name]
            for one in owners:
                owner = getattr(owner, one)
            setattr(owner, last, timed(times, name, getattr(owner, last)))


def start(model_dir: Path, impl: Any) -> Times:
    """In a new process: the whole start, and its parts."""
    times: Times = {}
    begin = time.process_time()
    import torch

    times["import of torch"] = time.process_time() - begin
    now = time.process_time()
    from slipstream.workers.config.worker_config import EngineConfig
    from slipstream.workers.engine.engine_builder import build_engine, build_runner, engine_limits
    from slipstream.workers.models.description.no_collection import no_collection
    from slipstream.workers.models.general import general_loader, stored_graph
    from slipstream.workers.models.spec_reader import read_spec

    times["import of the engine"] = time.process_time() - now
    torch.set_num_threads(1)
    spec = read_spec(model_dir, impl, in_subprocess=True)
    others = resource.getrusage(resource.RUSAGE_CHILDREN)
    times["description"] = others.ru_utime + others.ru_stime
    time_parts(times, {"stored_graph": stored_graph})
    own_loaded = general_loader._loaded

    def loaded(*args: Any) -> Any:
        now = time.process_time()
        with no_collection():
            from slipstream.workers.models.general import checked_model

        times["import of transformers"] = time.process_time() - now
        time_parts(times, {"checked_model": checked_model})
        return own_loaded(*args)

    general_loader._loaded = loaded
    config = EngineConfig(num_pages=200, max_model_len=500, model_impl=impl, num_threads=1)
    limits = engine_limits(model_dir, config, model=spec)
    now = time.process_time()
    runner = build_runner(model_dir, config, limits.num_pages, spec=spec)
    times["loading, all of it"] = time.process_time() - now
    now = time.process_time()
    build_engine(limits, runner)
    times["first tokens"] = time.process_time() - now
    times["all"] = time.process_time() - begin
    return times


def measure(model_dir: Path) -> dict[str, Times]:
    found = {}
    with tempfile.TemporaryDirectory() as cache:
        for title, impl in STARTS.items():
            command = [sys.executable, __file__, "--start", str(model_dir), impl]
            environment = os.environ | {"XDG_CACHE_HOME": cache, "OMP_NUM_THREADS": "1"}
            printed = subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout
            found[title] = json.loads(printed.splitlines()[-1])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="S-bf16,M-bf16")
    parser.add_argument("--directory", type=Path, default=None, help="where models are kept")
    parser.add_argument("--start", nargs=2, metavar=("DIRECTORY", "IMPL"), help="one start, in this process")
    args = parser.parse_args()
    if args.start:
        print(json.dumps(start(Path(args.start[0]), args.start[1])))
        return
    from yardstick_models import make_model

    with tempfile.TemporaryDirectory() as temporary:
        for name in args.models.split(","):
            found = measure(make_model(name, args.directory or Path(temporary)))
            names = dict.fromkeys(part for times in found.values() for part in times)
            print(f"\n| {name} | {' | '.join(found)} |\n|---|{'--:|' * len(found)}")
            for part in names:
                cells = [f"{times[part]:.2f}" if part in times else "" for times in found.values()]
                print(f"| {part} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
