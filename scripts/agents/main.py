"""Runs agents against a router with scripted workers, and prints what they did.

    scripts/agents/run                          all
    scripts/agents/run --only opencode --only Cline
    scripts/agents/run --write                  writes docs/results/agents.md, too

Environments are made at the first run, from PyPI and npm, and kept in build/agents; Node has to be there. What the
programs said is in build/agents/logs.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Generator, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import click

from scripts.agents.coding_agents import CODING_AGENTS
from scripts.agents.environments import FOLDER, node_environment, python_environment
from scripts.agents.processes import output_of
from scripts.agents.rules import models
from tests.support.clients.scripted_router import ROOT, scripted_router

LOOPS = ROOT / "scripts/agents/loops"
COMMON = ROOT / "tests/clients/requirements.txt"
OWN = ROOT / "scripts/agents/requirements"
PAGE = ROOT / "docs/results/agents.md"
INTRODUCTION = """\
# Agents

Clients from their packages, unmodified, each in loops with tools: the model calls a tool, the client runs it and sends
the result, and the model answers with text that uses it. aider, which has no tools, writes a file instead. They speak
chat completions, responses (with `previous_response_id`, conversations, reasoning given back) or Anthropic's messages.
`scripts/agents/run --write` makes this page; the loops of `openai` and `anthropic` for Python, LangChain, pydantic-ai
and instructor are also a stage of CI (`scripts/test --clients`).

The models are [scripted](../reference/mock_worker.md): router, API, templates, parsers and streams are real, the
model's answers are written by rules. `thinking` loops use a model with Qwen3's template, which thinks in `<think>` and
calls tools in Hermes' format; all others the demo model's format.

| client | version | loop | what was seen |
|---|---|---|---|
"""


class Client(Protocol):
    """`loops` gives a line for each loop: `loop` is its name; `saw` what was seen, or `failed` what went wrong."""

    @property
    def name(self) -> str: ...

    @property
    def version(self) -> str: ...

    def loops(self, api: str, folder: Path, log: Path) -> Generator[dict[str, str], None, None]: ...


@dataclass(frozen=True)
class PythonClient:
    name: str
    package: str
    module: str
    requirements: Path = COMMON

    @property
    def version(self) -> str:
        pins = dict(line.split("==") for line in self.requirements.read_text().splitlines() if "==" in line)
        return pins[self.package]

    def loops(self, api: str, folder: Path, log: Path) -> Generator[dict[str, str], None, None]:
        python = python_environment(self.requirements.stem, self.requirements)
        yield from lines_of(output_of((str(python), "-m", f"scripts.agents.loops.{self.module}", api), ROOT, {}, log))


@dataclass(frozen=True)
class NodeClient:
    """`node`: the version of Node that it needs, where that need not be the one that is there."""

    name: str
    packages: tuple[str, ...]
    module: str
    node: str = ""
    options: tuple[str, ...] = ()  # of `npm install`

    @property
    def version(self) -> str:
        return self.packages[0].rpartition("@")[2]

    def loops(self, api: str, folder: Path, log: Path) -> Generator[dict[str, str], None, None]:
        environment = node_environment(self.module, self.packages, self.options)
        own = node_environment("node", [f"node@{self.node}"]) / "node_modules/.bin/node" if self.node else "node"
        for name in ("report.mjs", f"{self.module}.mjs"):  # Node looks for packages beside the program
            shutil.copy(LOOPS / name, environment)
        yield from lines_of(output_of((str(own), str(environment / f"{self.module}.mjs"), api), environment, {}, log))


def lines_of(output: str) -> Iterator[dict[str, str]]:
    """Clients print lines of their own, and not always whole ones."""
    for line in output.splitlines():
        if (start := line.find('{"loop":')) >= 0:
            yield json.loads(line[start:])


def loops_of(client: Client, api: str, folder: Path, log: Path) -> Iterator[dict[str, str]]:
    """Its loops; what goes wrong beside them is one that failed."""
    num_loops = 0
    try:
        with closing(client.loops(api, folder, log)) as loops:
            for loop in loops:
                num_loops += 1
                yield loop
    except (OSError, RuntimeError, subprocess.SubprocessError) as error:
        yield {"loop": "its program", "failed": str(error)}
    else:
        if not num_loops:
            yield {"loop": "its program", "failed": f"it ran no loop; see {log}"}


ZOD = "zod@4.6.7"
AI_PACKAGES = (
    *("ai@7.0.173", "@ai-sdk/openai-compatible@3.0.92", "@ai-sdk/openai@4.0.118", "@ai-sdk/anthropic@4.0.105"),
    ZOD,
)
CLIENTS: tuple[Client, ...] = (
    PythonClient("openai (Python)", "openai", "openai_python"),
    PythonClient("LangChain, LangGraph", "langchain", "langchain_agents"),
    PythonClient("pydantic-ai", "pydantic-ai-slim", "pydantic_ai_agents"),
    PythonClient("instructor", "instructor", "instructor_tools"),
    PythonClient("openai (Python), responses", "openai", "openai_responses", OWN / "agents_sdk.txt"),
    PythonClient("OpenAI Agents SDK (Python)", "openai-agents", "agents_sdk", OWN / "agents_sdk.txt"),
    PythonClient("anthropic (Python)", "anthropic", "anthropic_python", OWN / "agents_sdk.txt"),
    PythonClient("smolagents", "smolagents", "smolagents_tools", OWN / "smolagents.txt"),
    PythonClient("LlamaIndex", "llama-index-core", "llamaindex_agents", OWN / "llamaindex.txt"),
    PythonClient("LiteLLM", "litellm", "litellm_library", OWN / "litellm.txt"),
    PythonClient("LiteLLM proxy", "litellm", "litellm_proxy", OWN / "litellm.txt"),
    PythonClient("aider", "aider-chat", "aider_edits", OWN / "aider.txt"),
    NodeClient("openai (Node)", ("openai@7.57.0", ZOD), "openai_node"),
    NodeClient("OpenAI Agents SDK (JS)", ("@openai/agents@0.20.0", ZOD), "agents_js"),
    NodeClient("anthropic (TypeScript)", ("@anthropic-ai/sdk@1.14.0", ZOD), "anthropic_node"),
    NodeClient("Vercel AI SDK", AI_PACKAGES, "vercel_ai"),
    # A package of a gigabyte, of whose scripts and peers nothing is needed.
    NodeClient(
        "n8n, OpenAI Chat Model",
        ("@n8n/n8n-nodes-langchain@2.40.3",),
        "n8n_chat_model",
        "24.21.0",
        ("--ignore-scripts", "--legacy-peer-deps"),
    ),
    *CODING_AGENTS,
)


@click.command()
@click.option("--only", multiple=True, type=click.Choice([client.name for client in CLIENTS]), help="Run these alone.")
@click.option("--write", is_flag=True, help=f"Write {PAGE.relative_to(ROOT)}.")
def main(only: tuple[str, ...], write: bool) -> None:
    """Runs agents against scripted workers. Exits with 1 if a loop fails."""
    if only and write:
        raise click.UsageError("--write is for all clients")
    logs = FOLDER / "logs"
    shutil.rmtree(logs, ignore_errors=True)
    logs.mkdir(parents=True)
    rows, num_failed = [], 0
    with tempfile.TemporaryDirectory() as temporary, scripted_router(Path(temporary), models(Path(temporary))) as site:
        for client in CLIENTS:
            if only and client.name not in only:
                continue
            folder = Path(temporary) / client.name.replace(" ", "_")
            for loop in loops_of(client, site.api, folder, logs / f"{client.name}.txt"):
                seen = loop.get("saw") or f"FAILED: {loop['failed']}"
                num_failed += "failed" in loop
                rows.append((client.name, client.version, loop["loop"], " ".join(seen.split()).replace("|", "\\|")))
                print(f"{client.name:20} {loop['loop']:36} {seen}", flush=True)
    if write:
        PAGE.write_text(INTRODUCTION + "".join(f"| {' | '.join(row)} |\n" for row in rows))
    sys.exit(1 if num_failed else 0)


if __name__ == "__main__":
    main()
