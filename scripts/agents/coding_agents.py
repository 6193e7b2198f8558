"""Coding agents for the terminal, without a terminal: each reads files whose content only its tools can tell."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Generator
from dataclasses import dataclass
from pathlib import Path

from scripts.agents.environments import node_environment
from scripts.agents.processes import output_of

XDG_FOLDERS = ("XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_CACHE_HOME", "XDG_STATE_HOME")
CONTEXT_TOKENS, OUTPUT_TOKENS = 200_000, 4_096


@dataclass(frozen=True)
class Desk:
    """Where an agent works: `home` has its settings, `folder` the files it reads."""

    api: str
    program: Path
    home: Path
    folder: Path
    log: Path

    def run(self, *arguments: str, **variables: str) -> str:
        home = str(self.home)
        own = {name: f"{home}/{name.lower()}" for name in XDG_FOLDERS}  # not those of who runs this
        environment = {**own, "HOME": home, "DO_NOT_TRACK": "1", "CI": "true", **variables}
        return output_of((str(self.program), *arguments), self.folder, environment, self.log)


@dataclass(frozen=True)
class CodingAgent:
    """`ask` runs the agent with a model and a task, and returns what it prints; `end` stops what it left running."""

    name: str
    package: str
    program: str
    ask: Callable[[Desk, str, str], str]
    end: Callable[[Desk], object] = lambda desk: None

    @property
    def version(self) -> str:
        return self.package.rpartition("@")[2]

    def loops(self, api: str, folder: Path, log: Path) -> Generator[dict[str, str], None, None]:
        folder_name = self.name.lower().replace(" ", "_")
        program = node_environment(folder_name, [self.package]) / "node_modules/.bin" / self.program
        desk = Desk(api, program, folder / "home", folder / "work", log)
        desk.home.mkdir(parents=True)
        desk.folder.mkdir()
        try:
            for loop, model, num_files in (
                ("reads a file", "scripted", 1),
                ("reads two files, two calls at once", "scripted", 2),
                ("reads a file, thinking model", "thinking", 1),
            ):
                try:
                    yield {"loop": loop, "saw": self._read(desk, model, num_files)}
                except (AssertionError, RuntimeError) as error:
                    yield {"loop": loop, "failed": str(error)}
        finally:
            self.end(desk)

    def _read(self, desk: Desk, model: str, num_files: int) -> str:
        codes = [f"code-{random.randrange(1000, 10000)}" for _ in range(num_files)]
        paths = [desk.folder / f"note{number}.txt" for number in range(num_files)]
        for path, code in zip(paths, codes, strict=True):
            path.write_text(f"The secret is {code}\n")
        said = self.ask(desk, model, f"{self.name}: read {' and '.join(map(str, paths))}")
        answer = f"The file says {codes[-1]}."
        assert answer in said, f"it printed {said[-300:]!r}"
        return f"{num_files} file{'s' * (num_files > 1)}; {answer!r}"


def ask_opencode(desk: Desk, model: str, task: str) -> str:
    limit = {"context": CONTEXT_TOKENS, "output": OUTPUT_TOKENS}
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "options": {"baseURL": desk.api, "apiKey": "-"},
        "models": {name: {"name": name, "limit": limit} for name in ("scripted", "thinking")},
    }
    settings = {"provider": {"slipstream": provider}, "autoupdate": False, "share": "disabled"}
    (desk.folder / "opencode.json").write_text(json.dumps(settings))
    chosen = f"slipstream/{model}"
    return desk.run("run", "--model", chosen, "--thinking", task)


def ask_cline(desk: Desk, model: str, task: str) -> str:
    desk.run("auth", "--provider", "openai", "--apikey", "-", "--modelid", model, "--baseurl", desk.api)
    return desk.run(task)


def ask_continue(desk: Desk, model: str, task: str) -> str:
    path = desk.home / "config.yaml"
    served = {"name": model, "provider": "openai", "model": model, "apiBase": desk.api, "apiKey": "-"}
    models = [{**served, "roles": ["chat"], "capabilities": ["tool_use"]}]
    path.write_text(json.dumps({"name": "slipstream", "version": "1.0.0", "schema": "v1", "models": models}))
    return desk.run("--config", str(path), "--auto", "--print", task)


def ask_codex(desk: Desk, model: str, task: str) -> str:
    settings = desk.home / ".codex"
    settings.mkdir(exist_ok=True)
    (settings / "config.toml").write_text(
        f"""\
model = {json.dumps(model)}
model_provider = "slipstream"
model_context_window = {CONTEXT_TOKENS}

[model_providers.slipstream]
name = "Slipstream"
base_url = {json.dumps(desk.api)}
wire_api = "responses"
env_key = "SLIPSTREAM_KEY"
"""
    )
    alone = "--dangerously-bypass-approvals-and-sandbox"  # its own sandbox needs rights that a container has not
    return desk.run("exec", "--skip-git-repo-check", alone, task, SLIPSTREAM_KEY="-")


def ask_claude_code(desk: Desk, model: str, task: str) -> str:
    return desk.run(
        *("--print", task, "--allowedTools", "Read"),
        ANTHROPIC_BASE_URL=desk.api.removesuffix("/v1"),
        ANTHROPIC_AUTH_TOKEN="-",
        ANTHROPIC_MODEL=model,
        ANTHROPIC_SMALL_FAST_MODEL=model,
        CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC="1",
    )


CODING_AGENTS = (
    CodingAgent("opencode", "opencode-ai@1.18.33", "opencode", ask_opencode),
    CodingAgent("Cline", "cline@3.0.65", "cline", ask_cline, lambda desk: desk.run("hub", "stop")),
    CodingAgent("Continue", "@continuedev/cli@1.5.47", "cn", ask_continue),
    CodingAgent("Codex", "@openai/codex@0.171.0", "codex", ask_codex),
    CodingAgent("Claude Code", "@anthropic-ai/claude-code@2.1.332", "claude", ask_claude_code),
)
