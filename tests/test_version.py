"""The version of Slipstream is the same wherever it is stated."""

from __future__ import annotations

import tomllib
from pathlib import Path

from slipstream import __version__


def test_the_package_has_the_version_that_its_processes_tell_each_other() -> None:
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
    assert project.get("version", __version__) == __version__
