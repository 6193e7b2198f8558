"""What the documentation names exists: files and headings that links lead to, paths in the text, functions of the page
"where is what", keys of the configuration and their defaults."""

from __future__ import annotations

import ast
import json
import re
import subprocess
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest
import yaml

from slipstream.cluster.config.cluster_config import ClusterConfig
from slipstream.cluster.config.model_entry import ModelEntry, ServedModelConfig
from slipstream.router.config.endpoints_config import EndpointConfig, EndpointsConfig

ROOT = Path(__file__).resolve().parents[1]
WHERE = ROOT / "docs/design/where.md"
PACKAGES = ("router", "workers", "cluster", "kv_transfer", "kernels")
FOLDERS = (*PACKAGES, "scripts", "tests", "configs", "docs")
OTHER_NAMES = {
    "OpenAI",
    "OpenTelemetry",
    "TensorRT",
    "MessagePack",
    "GenAI",
    "KiB",
    "MiB",
    "LlamaTokenizer",
    "DeepSeek",
    "MiniMax",
    "FunctionGemma",
    "LongCat",
    "QwQ",
    "ToolACE",
    "KServe",
    "TritonPythonModel",
    "PyTorch",
    "TorchScript",
    "OpenVINO",
    "LightGBM",
    "TensorFlow",
    "PaddlePaddle",
    "NaN",
}  # no classes of ours
FUNCTION = (ast.FunctionDef, ast.AsyncFunctionDef)
LINK = re.compile(r"\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ +(.*)$", re.MULTILINE)
CODE = re.compile(r"^ *```.*?^ *```|`[^`\n]*`", re.MULTILINE | re.DOTALL)


def pages() -> list[Path]:
    tracked = subprocess.run(["git", "ls-files", "*.md"], cwd=ROOT, capture_output=True, text=True, check=False)
    return [ROOT / name for name in tracked.stdout.split()] or sorted(ROOT.glob("docs/**/*.md"))


@cache
def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    text = re.sub(r"```.*?```", "", page.read_text("utf-8"), flags=re.DOTALL)
    titles = [re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", title) for title in HEADING.findall(text)]
    return {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in titles}


def broken_links(page: Path) -> list[str]:
    broken = []
    for target in LINK.findall(CODE.sub("", page.read_text("utf-8"))):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        file = (page.parent / name).resolve() if name else page
        if not file.exists() or (anchor and file.suffix == ".md" and anchor not in anchors(file)):
            broken.append(target)
    return broken


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_of_a_page_leads_to_a_file_and_a_heading(page: Path) -> None:
    assert broken_links(page) == []


def test_a_link_to_nowhere_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# A title\n[good](#a-title) [bad](#another) [gone](gone.md) [out](https://example.org) `[code](no.md)`\n"
    )
    assert broken_links(page) == ["#another", "gone.md"]


def named_paths(page: Path) -> list[str]:
    """The paths of this repository that a page names in code quotes, and the scripts in its commands."""
    text = page.read_text("utf-8")
    quoted = [
        name for name in re.findall(r"`([\w./-]+)`", text) if name.startswith(tuple(f"{one}/" for one in FOLDERS))
    ]
    modules = [name.replace(".", "/") + ".py" for name in re.findall(r"-m (scripts\.[\w.]+)", text)]
    return [*quoted, *modules, *re.findall(r"(?<![\w./])scripts/[\w./-]*\w", text)]


@pytest.mark.parametrize("page", [page for page in pages() if page.name != "CHANGELOG.md"], ids=lambda page: page.name)
def test_every_file_that_a_page_names_exists(page: Path) -> None:
    assert [name for name in named_paths(page) if not (ROOT / name).exists()] == []


@cache
def classes() -> frozenset[str]:
    modules = (module for folder in (*PACKAGES, "scripts", "tests") for module in (ROOT / folder).rglob("*.py"))
    return frozenset(
        name for module in modules for name in re.findall(r"^ *class (\w+)", module.read_text("utf-8"), re.M)
    )


@pytest.mark.parametrize("page", sorted((ROOT / "docs/design").glob("*.md")), ids=lambda page: page.name)
def test_every_class_that_a_design_page_names_exists(page: Path) -> None:
    named = set(re.findall(r"\b[A-Z][a-z0-9]+(?:[A-Z][a-z0-9]*)+\b", page.read_text("utf-8")))
    assert named - classes() - OTHER_NAMES == set()


def definitions(file: Path) -> set[str]:
    """Functions, classes and methods (`Class.method`, inherited ones of the same file included) of a module."""
    names: set[str] = set()
    classes: dict[str, set[str]] = {}
    for node in ast.parse(file.read_text("utf-8")).body:
        if isinstance(node, ast.ClassDef):
            own = {part.name for part in node.body if isinstance(part, FUNCTION)}
            bases = [classes.get(base.id, set()) for base in node.bases if isinstance(base, ast.Name)]
            classes[node.name] = own.union(*bases)
            names |= {node.name} | {f"{node.name}.{method}" for method in classes[node.name]}
        elif isinstance(node, FUNCTION):
            names.add(node.name)
    return names


def rows_of_where() -> list[tuple[str, str]]:
    """Those of that page, and of such tables on the pages of single parts."""
    text = "\n".join(page.read_text("utf-8") for page in sorted(WHERE.parent.glob("*.md")))
    rows = re.findall(r"^\| .* \| `(\S+\.py)` \| (`.*`) \|$", text, re.MULTILINE)
    return [(file, name) for file, names in rows for name in re.findall(r"`([\w.]+)`", names)]


def test_tables_of_where_is_what_name_functions_that_exist() -> None:
    rows = rows_of_where()
    assert len(rows) > 50
    assert [(file, name) for file, name in rows if name not in definitions(ROOT / file)] == []


@pytest.mark.parametrize("page", sorted((ROOT / "docs/design").glob("*.md")), ids=lambda page: page.name)
def test_a_design_page_is_short_and_in_the_index(page: Path) -> None:
    assert len(page.read_text("utf-8").splitlines()) < 250
    assert page.name == "README.md" or f"({page.name})" in (page.parent / "README.md").read_text("utf-8")


def settings(config: type, prefix: str = "") -> dict[str, Any]:
    """Dotted keys of a configuration and all below it, with their defaults. Both pools have the same keys; overrides of
    the engine's settings are left out."""
    found: dict[str, Any] = {}
    for key, kind in get_type_hints(config).items():
        if key in ("decode", "engine") and (prefix or key == "decode"):
            continue
        if is_dataclass(kind) and isinstance(kind, type):
            found |= settings(kind, f"{prefix}{key}.")
        elif key in (parts := {part.name: part for part in fields(config)}):
            default, factory = parts[key].default, parts[key].default_factory
            found[prefix + key] = default if factory is MISSING else factory()
    return found


def test_the_page_of_the_configuration_has_every_key_and_its_default() -> None:
    page = (ROOT / "docs/reference/configuration.md").read_text("utf-8")
    rows = dict(re.findall(r"^\| `([\w.]+)` \| (?:`(.*?)`|required) \|", page, re.MULTILINE))
    expected = {
        key: value if value is MISSING else json.loads(json.dumps(value))
        for key, value in settings(ClusterConfig).items()
    }
    assert {key: MISSING if key == "model.path" else yaml.safe_load(value) for key, value in rows.items()} == expected


def test_the_page_of_the_configuration_has_every_key_of_an_entry_of_models() -> None:
    page = (ROOT / "docs/reference/configuration.md").read_text("utf-8")
    own = {part.name for part in fields(ModelEntry)} - {part.name for part in fields(ServedModelConfig)}
    assert set(re.findall(r"^\| `models\[\]\.(\w+)` \|", page, re.MULTILINE)) == own


def test_the_page_of_the_configuration_has_every_key_of_an_endpoint_and_its_default() -> None:
    page = (ROOT / "docs/reference/configuration.md").read_text("utf-8")
    rows = dict(re.findall(r"^\| `(\w+\.\*\.\w+)` \| `(.*?)` \|", page, re.MULTILINE))
    expected: dict[str, Any] = {}
    shared = {key: value for key, value in settings(EndpointConfig, "KIND.*.").items() if key != "KIND.*.inputs"}
    for kind, entries in get_type_hints(EndpointsConfig).items():
        if kind != "__pydantic_config__":
            (_, endpoint) = get_args(entries)
            own = {part.name for part in fields(endpoint)} - {part.name for part in fields(EndpointConfig)} | {"inputs"}
            expected |= {
                key: value for key, value in settings(endpoint, f"{kind}.*.").items() if key.split(".")[2] in own
            }
    found = {key: yaml.safe_load(value) for key, value in rows.items()}
    assert found == json.loads(json.dumps(expected | shared))
