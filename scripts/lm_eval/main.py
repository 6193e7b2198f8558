"""Runs lm-eval's tasks on a cluster (`local-completions`) and on transformers (`hf`), and compares each document.

    scripts/lm_eval/run --python ENVIRONMENT/bin/python     an environment with lm-eval[api,hf] and torch
    scripts/lm_eval/run --python ... --only qwen3           one model
    scripts/lm_eval/run --python ... --write                all, and writes docs/results/lm_eval.md

Exits with 1 if a log-likelihood differs by more than rounding, or a choice or a generated text at all.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from scripts.lm_eval.models import DEMO_NAME, KINDS, MAX_LENGTH, build_models
from scripts.lm_eval.tasks import PREFIX, TASKS, write_tasks
from tests.support.clients.scripted_router import ROOT

PAGE = ROOT / "docs/results/lm_eval.md"
START_TIMEOUT_S, EVALUATION_TIMEOUT_S = 300.0, 900.0
BOTH = "add_bos_token=True"  # else `hf` adds one where the tokenizer does, and `local-completions` does not
TOLERANCE = 2e-3  # of a document's log-likelihood, which is a sum over up to some hundred tokens
INTRODUCTION = """\
# lm-eval

[lm-eval](https://github.com/EleutherAI/lm-evaluation-harness) {version}, unmodified: its `local-completions` model asks
a cluster for log-probabilities of prompts, its `hf` model computes them with transformers in the same process, both in
float32. The cluster has a prefill and a decode worker for each model, which compute prompts in steps of 128 tokens. All
models but the demo are tiny ones with random weights. The tasks are small ones of every kind that lm-eval has
([how](../how-to/lm_eval.md)), with texts that are read in several windows among them.

A document is equal if its choice, its generated text and whether its text is the greedy one are the same.
`difference` is the largest one between two log-likelihoods of a document, which are sums over its tokens (the longest
has 1,873). `scripts/lm_eval/run --write` makes this page.

| model | computed by | task | documents | equal | difference | metrics, both ways |
|---|---|---|---|---|---|---|
"""


@dataclass(frozen=True)
class Comparison:
    num_documents: int
    num_equal: int
    difference: float

    @property
    def is_good(self) -> bool:
        return self.num_equal == self.num_documents and self.difference <= TOLERANCE


def compared(ours: list[Any], theirs: list[Any]) -> Comparison:
    """Two lists of responses: log-likelihoods with whether they are the greedy ones, or texts, by document."""
    num_equal, difference = 0, 0.0
    for one, other in zip(ours, theirs, strict=True):
        pairs = list(zip(one, other, strict=True))
        if isinstance(one[0], str):
            num_equal += one == other
            continue
        likelihoods = [(numbers(a), numbers(b)) for a, b in pairs]
        difference = max(difference, *(abs(a[0] - b[0]) for a, b in likelihoods))
        best = [max(range(len(pairs)), key=lambda at, side=side: likelihoods[at][side][0]) for side in (0, 1)]
        num_equal += best[0] == best[1] and all(a[1:] == b[1:] for a, b in likelihoods)
    return Comparison(len(ours), num_equal, difference)


def numbers(response: Any) -> list[Any]:
    """The log-likelihood and, but for whole texts, whether it is that of the greedy continuation."""
    return [float(response[0]), str(response[1]) == "True"] if isinstance(response, list) else [float(response)]


@contextmanager
def cluster(folder: Path, models: dict[str, tuple[str, Path]]) -> Iterator[str]:
    """The address of the API of a cluster that serves these models."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    config = {
        "name": f"lm-eval-{port}",
        "engine": {"dtype": "float32", "kv_cache_mib": 32, "num_threads": 1, "max_step_tokens": 128},
        "router": {"http": {"port": port}},
        "models": [{"name": name, "path": str(path)} for name, (_, path) in models.items()],
    }
    file, log = folder / "cluster.yaml", folder / "cluster.log"
    file.write_text(json.dumps(config))
    slipstream = str(ROOT / ".venv/bin/slipstream")
    with log.open("w") as output:
        process = subprocess.Popen(
            (slipstream, "serve", str(file)), cwd=ROOT, stdin=subprocess.DEVNULL, stdout=output, stderr=output
        )
    try:
        wait_until_ready(f"http://127.0.0.1:{port}", process, log)
        yield f"http://127.0.0.1:{port}/v1/completions"
    finally:
        process.terminate()
        process.wait(60)


def wait_until_ready(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    until_s = time.monotonic() + START_TIMEOUT_S
    while True:
        try:
            with urllib.request.urlopen(f"{url}/health/ready", timeout=5):
                return
        except (urllib.error.URLError, OSError):
            if process.poll() is not None or time.monotonic() > until_s:
                raise RuntimeError(f"the cluster did not start:\n{log.read_text()[-3000:]}") from None
            time.sleep(0.5)


def evaluated(python: Path, folder: Path, tasks: Path, models: dict[str, tuple[str, Path]], url: str) -> dict[str, Any]:
    """What lm-eval says of each model: on the cluster, and on transformers."""
    jobs = []
    for name, (_, path) in models.items():
        ours = f"model={name},base_url={url},tokenizer={path},num_concurrent=4,{BOTH}"
        ours += f",max_length={MAX_LENGTH + 2}"  # of which its windows take two away
        theirs = f"pretrained={path},dtype=float32,max_length={MAX_LENGTH},{BOTH}"
        for backend, arguments in (("local-completions", ours), ("hf", theirs)):
            results = str(folder / f"{name}.{backend}.json")
            jobs.append({"backend": backend, "arguments": arguments, "results": results})
    (folder / "jobs.json").write_text(json.dumps(jobs))
    command = (str(python), str(Path(__file__).parent / "evaluate.py"), str(tasks), str(folder / "jobs.json"))
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=EVALUATION_TIMEOUT_S, cwd=tasks
    )
    if done.returncode:
        raise RuntimeError(f"lm-eval failed:\n{done.stderr[-5000:]}")
    return {
        name: [json.loads((folder / f"{name}.{backend}.json").read_text()) for backend in ("local-completions", "hf")]
        for name in models
    }


def version_of(python: Path) -> str:
    command = (str(python), "-c", "import importlib.metadata as m; print(m.version('lm_eval'))")
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


@click.command()
@click.option("--python", type=click.Path(exists=True, path_type=Path), required=True, help="Of lm-eval's environment.")
@click.option("--only", multiple=True, type=click.Choice([DEMO_NAME, *KINDS]), help="These models alone.")
@click.option("--write", is_flag=True, help=f"Write {PAGE.relative_to(ROOT)}.")
def main(python: Path, only: tuple[str, ...], write: bool) -> None:
    """Compares lm-eval on a cluster with lm-eval on transformers."""
    if only and write:
        raise click.UsageError("--write is for all models")
    rows, is_good = [], True
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        tasks = folder / "tasks"
        tasks.mkdir()
        write_tasks(tasks)
        models = {name: found for name, found in build_models(folder).items() if not only or name in only}
        with cluster(folder, models) as url:
            found = evaluated(python, folder, tasks, models, url)
        for name, (ours, theirs) in found.items():
            for task in TASKS:
                key = PREFIX + task
                same = compared(ours["samples"][key], theirs["samples"][key])
                is_good &= same.is_good
                metrics = "; ".join(
                    f"{metric.partition(',')[0]} {value:.6g}, {theirs['metrics'][key][metric]:.6g}"
                    for metric, value in sorted(ours["metrics"][key].items())
                    if "stderr" not in metric and metric not in ("alias", "sample_len")
                )
                difference = "" if task == "generation" else f"{same.difference:.1e}"
                row = (name, models[name][0], task, same.num_documents, same.num_equal, difference, metrics)
                rows.append("| " + " | ".join(map(str, row)) + " |\n")
                print(*row, "" if same.is_good else "DIFFERENT", sep="  ", flush=True)
    if write:
        PAGE.write_text(INTRODUCTION.format(version=version_of(python)) + "".join(rows))
    sys.exit(0 if is_good else 1)


if __name__ == "__main__":
    main()
