"""The environments of clients, made when they are asked for and kept in build/agents."""

from __future__ import annotations

import json
import subprocess
import venv
from collections.abc import Sequence
from pathlib import Path

from tests.support.clients.scripted_router import ROOT

FOLDER = ROOT / "build/agents"
INSTALL_TIMEOUT_S = 900


def python_environment(name: str, requirements: Path) -> Path:
    """The interpreter of a virtual environment with exactly these packages."""
    folder, wanted = FOLDER / name, requirements.read_text()
    installed, python = folder / "installed.txt", folder / "bin/python"
    if not installed.exists() or installed.read_text() != wanted:
        venv.create(folder, clear=True, with_pip=True)
        _install(folder, str(python), "-m", "pip", "install", "--quiet", "--no-deps", "-r", str(requirements))
        installed.write_text(wanted)
    return python


def node_environment(name: str, packages: Sequence[str], options: Sequence[str] = ()) -> Path:
    """A folder with these packages of npm (`name@version`) and what they need in its node_modules. `options` of `npm
    install`."""
    folder, wanted = FOLDER / name, json.dumps(sorted(packages))
    installed = folder / "installed.json"
    if not installed.exists() or installed.read_text() != wanted:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "package.json").write_text(json.dumps({"name": name, "private": True, "type": "module"}))
        _install(folder, "npm", "install", "--no-audit", "--no-fund", *options, *packages)
        installed.write_text(wanted)
    return folder


def _install(folder: Path, *command: str) -> None:
    done = subprocess.run(
        command, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=INSTALL_TIMEOUT_S
    )
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed: {done.stderr[-2000:]}")
