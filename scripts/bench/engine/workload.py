"""The work that every engine of the benchmark does, and how it is timed. Standard library only: it runs in each
engine's own environment.

Greedy, exactly the asked number of tokens, no prefix cache. Prompts are random token ids that follow from the section
and the number of the round alone, so that in every round all engines compute the same.
"""

from __future__ import annotations

import json
import os
import random
import resource
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol

NUM_MIXED = 64
NUM_TTFT_REQUESTS = 3
DECODE_ISL = DECODE_OSL = 128
FIRST_TOKEN_ID = 3  # those before are special


@dataclass(frozen=True, slots=True)
class Request:
    prompt: list[int]
    num_outputs: int


class EngineAdapter(Protocol):
    """An engine in this process. `run` submits all requests at once and returns for each a `time.perf_counter()` stamp
    an output token."""

    version: str

    def start(self, model_dir: Path, num_threads: int, kv_cache_gib: int) -> None: ...

    def run(self, requests: Sequence[Request]) -> list[list[float]]: ...


@dataclass(frozen=True, slots=True)
class Result:
    """One section, once. `figures` by name; CPU seconds of the whole process and all its threads, and of all others
    on the machine meanwhile."""

    figures: dict[str, float]
    wall_s: float
    cpu_s: float
    others_cpu_s: float
    peak_rss_mib: float

    def to_json(self) -> str:
        return json.dumps(asdict(self))


def sections(names: Sequence[str]) -> list[str]:
    """`ttft`, `decode` and `mixed` spelled out into what is measured at a time."""
    known = {
        "ttft": ["ttft-128", "ttft-512", "ttft-1024"],
        "decode": ["decode-1", "decode-8", "decode-32"],
        "mixed": ["mixed"],
    }
    return [section for name in names for section in known.get(name, [name])]


def vocab_size(model_dir: Path) -> int:
    return int(json.loads((model_dir / "config.json").read_text())["vocab_size"])


def measure(engine: EngineAdapter, section: str, round_number: int, vocab: int) -> Result:
    """Runs `ttft-ISL`, `decode-BATCH` or `mixed` once, after a short request that brings back what has idled."""
    kind, _, size = section.partition("-")
    rng = random.Random(f"{section} {round_number}")
    run: Callable[[], dict[str, float]] = {
        "ttft": lambda: _ttft(engine, int(size), rng, vocab),
        "decode": lambda: _decode(engine, int(size), rng, vocab),
        "mixed": lambda: _mixed(engine, rng, vocab),
    }[kind]
    _timed(engine, [Request(_prompt(rng, DECODE_ISL, vocab), 8)])
    machine_s, cpu_s, begin = _machine_cpu_s(), time.process_time(), time.perf_counter()
    figures = run()
    wall_s, cpu_s = time.perf_counter() - begin, time.process_time() - cpu_s
    others_s = max(0.0, _machine_cpu_s() - machine_s - cpu_s)
    return Result(figures, wall_s, cpu_s, others_s, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)


def _machine_cpu_s() -> float:
    """CPU seconds of all programs since the machine started, in steps of hundredths: user, nice, system, interrupts
    and what the host took away."""
    fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    user, nice, system, _, _, irq, softirq, steal = (int(field) for field in fields[:8])
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


def _prompt(rng: random.Random, num_tokens: int, vocab: int) -> list[int]:
    return [rng.randrange(FIRST_TOKEN_ID, vocab) for _ in range(num_tokens)]


def _timed(engine: EngineAdapter, requests: list[Request]) -> tuple[float, list[list[float]]]:
    """When the requests were submitted, and the stamps of all tokens. Raises RuntimeError for missing tokens."""
    begin = time.perf_counter()
    stamps = engine.run(requests)
    expected, got = [r.num_outputs for r in requests], [len(s) for s in stamps]
    if got != expected:
        raise RuntimeError(f"the engine gave {got} tokens for {expected}")
    return begin, stamps


def _ttft(engine: EngineAdapter, isl: int, rng: random.Random, vocab: int) -> dict[str, float]:
    times_s = []
    for _ in range(NUM_TTFT_REQUESTS):
        begin, stamps = _timed(engine, [Request(_prompt(rng, isl, vocab), 1)])
        times_s.append(stamps[0][0] - begin)
    ttft_s = statistics.median(times_s)
    return {f"TTFT ms, ISL {isl}": 1e3 * ttft_s, f"prefill tok/s, ISL {isl}": isl / ttft_s}


def _decode(engine: EngineAdapter, batch: int, rng: random.Random, vocab: int) -> dict[str, float]:
    """The rate while all of the batch decode: tokens after the last of the first tokens."""
    _, stamps = _timed(engine, [Request(_prompt(rng, DECODE_ISL, vocab), DECODE_OSL) for _ in range(batch)])
    all_started = max(tokens[0] for tokens in stamps)
    num_tokens = sum(stamp > all_started for tokens in stamps for stamp in tokens)
    return {f"decode tok/s, batch {batch}": num_tokens / (max(tokens[-1] for tokens in stamps) - all_started)}


def _mixed(engine: EngineAdapter, rng: random.Random, vocab: int) -> dict[str, float]:
    requests = [Request(_prompt(rng, rng.randint(64, 512), vocab), rng.randint(32, 128)) for _ in range(NUM_MIXED)]
    begin, stamps = _timed(engine, requests)
    num_outputs = sum(r.num_outputs for r in requests)
    return {f"mixed, {NUM_MIXED} requests, out tok/s": num_outputs / (max(t[-1] for t in stamps) - begin)}
