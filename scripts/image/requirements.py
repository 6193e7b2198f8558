"""Prints the packages that Slipstream needs with some of its extras, in the folder of pyproject.toml:
`python3 scripts/image/requirements.py cpu,kserve`. Nothing but the standard library."""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path


def requirements(project: dict[str, dict[str, list[str]]], extras: list[str]) -> list[str]:
    """Raises KeyError for an extra that there is not."""
    optional = project["optional-dependencies"]
    return [*project["dependencies"], *(one for extra in extras for one in optional[extra])]


if __name__ == "__main__":
    chosen = [extra for extra in sys.argv[1].split(",") if extra]
    print(*requirements(tomllib.loads(Path("pyproject.toml").read_text())["project"], chosen), sep="\n")
