"""What the images promise, as far as it can be read from their recipe and from the packages that are installed here."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

from scripts.image.licences import NONE, by_licence
from scripts.image.size import MAX_BYTES, sizes

ROOT = Path(__file__).resolve().parents[2]
TARGETS = ("cpu", "cuda")


def stages() -> dict[str, list[tuple[str, str]]]:
    """The instructions of each stage, with continued lines joined and comments left out."""
    text = re.sub(r"^\s*#.*\n", "", (ROOT / "Containerfile").read_text(), flags=re.MULTILINE)
    found: dict[str, list[tuple[str, str]]] = {"": []}
    name = ""
    for line in text.replace("\\\n", " ").splitlines():
        instruction, _, rest = line.strip().partition(" ")
        if instruction == "FROM":
            name = rest.split(" AS ")[1]
            found[name] = []
        if instruction:
            found[name].append((instruction, " ".join(rest.split())))
    return found


def of_image(target: str) -> list[tuple[str, str]]:
    """All that an image is made of: its stage, and before it those that this one begins with."""
    all_stages = stages()
    base = all_stages[target][0][1].split(" AS ")[0]
    return (of_image(base) if base in all_stages else []) + all_stages[target]


@pytest.mark.parametrize("target", TARGETS)
def test_an_image_runs_without_rights_and_ends_in_order(target: str) -> None:
    last = dict(of_image(target))
    assert last["USER"] == "1000:1000"
    assert last["STOPSIGNAL"] == "SIGTERM"
    assert last["HEALTHCHECK"].endswith('CMD ["slipstream", "ready"]')
    # Without a shell in between, which would be the first process and would not pass signals on.
    assert json.loads(last["ENTRYPOINT"]) == ["slipstream"]
    assert json.loads(last["CMD"])[0] == "serve"


@pytest.mark.parametrize("target", TARGETS)
def test_an_image_has_no_compiler_and_nothing_of_the_stages_that_build_but_the_environment(target: str) -> None:
    for instruction, rest in of_image(target):
        assert not (instruction == "RUN" and re.search(r"apt|pip|g\+\+|gcc", rest)), rest
        if instruction in ("COPY", "ADD"):
            assert re.fullmatch(r"--from=\S+ /opt/slipstream /opt/slipstream", rest)


@pytest.mark.parametrize("target", TARGETS)
def test_every_package_is_pinned(target: str) -> None:
    for instruction, rest in stages()[f"packages-{target}"]:
        installs = [part for part in rest.split("&&") if " install " in part] if instruction == "RUN" else []
        assert all("-c constraints.txt" in part for part in installs), installs
    [version] = re.findall(r'^version = "(.*)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert f"VERSION={version}" in [rest for instruction, rest in stages()["runtime"] if instruction == "ARG"]


def test_what_an_image_is_built_from_is_there() -> None:
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    assert all((ROOT / line[1:]).exists() for line in lines if line.startswith("!"))


def test_the_packages_of_the_cpu_image_stay_within_their_bound() -> None:
    try:
        by_package = sizes("kserve,onnx")
    except PackageNotFoundError as error:
        pytest.skip(f"{error} is not installed")
    assert by_package["torch"] > 1_000_000, "files of packages are not found"
    if by_package["torch"] > 700_000_000:
        pytest.skip("this PyTorch is built for CUDA")
    assert sum(by_package.values()) < MAX_BYTES - 150_000_000, "UCX takes 150 MB more"


def test_the_packages_of_an_extra_are_printed_and_an_unknown_one_is_refused() -> None:
    command = [sys.executable, "scripts/image/requirements.py"]
    listed = subprocess.run([*command, "onnx,kserve"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert {"onnxruntime>=1.20", "tritonclient>=2.60", "torch>=2.11"} <= set(listed.splitlines())
    assert subprocess.run([*command, "none-such"], cwd=ROOT, capture_output=True, check=False).returncode != 0


def test_packages_are_listed_by_their_licences() -> None:
    components = [
        {"name": "a", "licenses": [{"license": {"id": "MIT"}}]},
        {"name": "b", "licenses": [{"expression": "MIT OR Apache-2.0"}]},
        {"name": "c", "licenses": [{"license": {"id": "MIT"}}]},
        {"name": "d"},
    ]
    assert by_licence(components) == {"MIT": ["a", "c"], "MIT OR Apache-2.0": ["b"], NONE: ["d"]}
