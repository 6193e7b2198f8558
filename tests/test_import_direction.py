"""The order of the layers: cluster -> workers -> router -> kv_transfer; workers -> kernels."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
LAYERS = ("cluster", "workers", "router", "kv_transfer", "kernels")
MAY_IMPORT = {
    "cluster": {"cluster", "workers", "router", "kv_transfer", "kernels"},
    "workers": {"workers", "router", "kv_transfer", "kernels"},
    "router": {"router", "kv_transfer"},
    "kv_transfer": {"kv_transfer"},
    "kernels": {"kernels"},
}


def imported_modules(source: str) -> list[tuple[int, str]]:
    """Line and dotted name of everything imported anywhere in a module, `from a import b` as `a.b`."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = "." * node.level + (node.module or "")
            found += [(node.lineno, f"{base}.{alias.name}") for alias in node.names]
    return found


def violations(layer: str, source: str) -> list[str]:
    wrong = []
    for line, name in imported_modules(source):
        top, *rest = name.split(".")
        if name.startswith("."):
            wrong.append(f"line {line}: relative import {name}")
        elif top in LAYERS:
            wrong.append(f"line {line}: bare import of {name}; it is slipstream.{name}")
        elif top == "slipstream" and rest and rest[0] in LAYERS and rest[0] not in MAY_IMPORT[layer]:
            wrong.append(f"line {line}: {layer} must not import {name}")
    return wrong


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(("slipstream", *(part for part in parts if part != "__init__")))


def all_modules() -> dict[str, Path]:
    return {module_name(path): path for layer in LAYERS for path in sorted((ROOT / layer).rglob("*.py"))}


def test_every_layer_imports_only_what_lies_below_it() -> None:
    wrong = [
        f"{path.relative_to(ROOT)} {problem}"
        for name, path in all_modules().items()
        for problem in violations(name.split(".")[1], path.read_text(encoding="utf-8"))
    ]
    assert not wrong, "\n".join(wrong)


def test_no_module_imports_itself_by_a_circle() -> None:
    modules = all_modules()
    imports = {
        name: {
            target
            for _, imported in imported_modules(path.read_text(encoding="utf-8"))
            for target in (imported, imported.rpartition(".")[0])
            if target in modules and target != name
        }
        for name, path in modules.items()
    }
    done: set[str] = set()

    def visit(name: str, trail: tuple[str, ...]) -> None:
        assert name not in trail, " -> ".join((*trail[trail.index(name) :], name))
        if name not in done:
            for target in sorted(imports[name]):
                visit(target, (*trail, name))
            done.add(name)

    for name in modules:
        visit(name, ())


def test_the_folders_are_namespace_packages_that_cannot_shadow_others() -> None:
    present = [
        str(path.relative_to(ROOT)) for layer in LAYERS for path in [ROOT / layer / "__init__.py"] if path.exists()
    ]
    assert not present


@pytest.mark.parametrize(
    ("layer", "source"),
    [
        ("router", "import slipstream.workers.worker"),
        ("router", "from slipstream.workers import worker"),
        ("router", "from slipstream import workers"),
        ("kv_transfer", "from slipstream.router.protocol.messages import Hello"),
        ("kernels", "import slipstream.kv_transfer.api.ticket"),
        ("workers", "from slipstream.cluster.config.cluster_config import ClusterConfig"),
        ("cluster", "from workers.worker import Worker"),
        ("cluster", "import kernels"),
        ("cluster", "from .config import ClusterConfig"),
        ("router", "def f():\n    from slipstream.cluster import cli"),
    ],
)
def test_a_wrong_import_is_found(layer: str, source: str) -> None:
    assert violations(layer, source)


@pytest.mark.parametrize(
    ("layer", "source"),
    [
        ("cluster", "from slipstream.workers.worker import Worker"),
        ("workers", "from slipstream.router.protocol.messages import Hello"),
        ("workers", "import slipstream.kernels.attention"),
        ("router", "import ray\nfrom slipstream.kv_transfer.api.ticket import PeerId"),
    ],
)
def test_a_right_import_passes(layer: str, source: str) -> None:
    assert not violations(layer, source)
