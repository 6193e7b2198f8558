"""Runs in lm-eval's environment: evaluates models, and writes what came out of each document.

    python evaluate.py TASKS_FOLDER JOBS_FILE

The file has a JSON list of jobs: `backend` and `arguments` of the model, and the file for the `results`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import lm_eval
from lm_eval.tasks import TaskManager


def evaluated(manager: TaskManager, names: list[str], backend: str, arguments: str) -> dict[str, Any]:
    found = lm_eval.simple_evaluate(
        model=backend,
        model_args=arguments,
        tasks=names,
        task_manager=manager,
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
    return {"samples": samples, "metrics": metrics}


def main(folder: str, jobs: str) -> None:
    names = [json.loads(file.read_text())["task"] for file in sorted(Path(folder).glob("*.yaml"))]
    manager = TaskManager(include_path=folder, include_defaults=False)
    for job in json.loads(Path(jobs).read_text()):
        found = evaluated(manager, names, job["backend"], job["arguments"])
        Path(job["results"]).write_text(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
