"""Runs in lm-eval's environment: evaluates one model, and writes what came out of each document.

python evaluate.py RESULTS_FILE TASKS_FOLDER BACKEND MODEL_ARGUMENTS
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import lm_eval
from lm_eval.tasks import TaskManager


def main(results: str, folder: str, backend: str, arguments: str) -> None:
    names = [json.loads(file.read_text())["task"] for file in sorted(Path(folder).glob("*.yaml"))]
    found = lm_eval.simple_evaluate(
        model=backend,
        model_args=arguments,
        tasks=names,
        task_manager=TaskManager(include_path=folder, include_defaults=False),
        log_samples=True,
        bootstrap_iters=0,
        batch_size=4,
        device="cpu",
    )
    samples = {
        name: [one["filtered_resps"] for one in sorted(of_task, key=lambda one: one["doc_id"])]
        for name, of_task in found["samples"].items()
    }
    metrics = {
        name: {key: value for key, value in of_task.items() if isinstance(value, int | float)}
        for name, of_task in found["results"].items()
    }
    Path(results).write_text(json.dumps({"samples": samples, "metrics": metrics}))


if __name__ == "__main__":
    main(*sys.argv[1:])
