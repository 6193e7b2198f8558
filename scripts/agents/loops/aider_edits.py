"""aider, which has no tools: it takes whole files out of the model's text, and writes them."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path

from scripts.agents.loops.report import Loop, run

OPTIONS = (
    *("--no-git", "--yes-always", "--no-pretty", "--edit-format", "whole"),
    *("--no-show-model-warnings", "--no-check-update", "--analytics-disable"),
)


def edit(api: str, model: str, *options: str) -> str:
    code = f"code-{random.randrange(1000, 10000)}"
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "note.txt"
        path.write_text("nothing\n")
        program = str(Path(sys.executable).with_name("aider"))
        done = subprocess.run(
            [
                program,
                "--model",
                model,
                *options,
                *OPTIONS,
                "--message",
                f"aider: write {code} into note.txt",
                str(path),
            ],
            cwd=folder,
            env={**os.environ, "HOME": folder, "ANTHROPIC_API_BASE": api.removesuffix("/v1")},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert path.read_text() == f"{code}\n", done.stdout[-1000:] + done.stderr[-1000:]
    return f"note.txt is '{code}'"


def of_openai(api: str, *options: str) -> str:
    return edit(api, "openai/scripted", "--openai-api-base", api, "--openai-api-key", "-", *options)


LOOPS: dict[str, Loop] = {
    "chat completions, writes a file": lambda api: of_openai(api, "--no-stream"),
    "chat completions, writes a file, streamed": of_openai,
    "messages, writes a file, streamed": lambda api: edit(api, "anthropic/scripted", "--anthropic-api-key", "-"),
}

if __name__ == "__main__":
    run(LOOPS)
