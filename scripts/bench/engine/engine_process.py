"""One engine in a process of its own: starts, generates a token, and then runs the measurements that standard input
names.

    engine_process.py ENGINE MODEL_DIR NUM_THREADS KV_CACHE_GIB

A line `SECTION ROUND` is answered with a line of JSON (see `workload.Result`). Whatever else the engine prints goes to
standard error.
"""

from __future__ import annotations

import json
import os
import random
import sys
from pathlib import Path

from adapters import ADAPTERS
from workload import FIRST_TOKEN_ID, EngineAdapter, Request, measure, vocab_size


def main() -> None:
    name, model_dir, num_threads, kv_cache_gib = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    engine: EngineAdapter = ADAPTERS[name]()
    engine.start(model_dir, num_threads, kv_cache_gib)
    vocab, rng = vocab_size(model_dir), random.Random(0)
    engine.run([Request([rng.randrange(FIRST_TOKEN_ID, vocab) for _ in range(128)], 1)])
    print(json.dumps({"version": engine.version}), file=answers)
    for line in sys.stdin:
        section, round_number = line.split()
        print(measure(engine, section, int(round_number), vocab).to_json(), file=answers)
    os._exit(0)  # some engines hang or complain when they are taken down


if __name__ == "__main__":
    main()
