"""The order of the layers (cluster -> workers -> router -> kv_transfer; workers -> kernels), and of their folders."""

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

# Bottom to top: a folder may import those that stand before it. A folder inside another is one of its own.
FLOORS = """
kernels/pages kernels/attention kernels/elementwise kernels/linear kernels/quantization kernels/moe kernels kernels/cpu
kernels/benchmark kernels/pages/gpu kernels/quantization/gpu kernels/attention/gpu kernels/elementwise/gpu
kernels/linear/gpu kernels/moe/gpu kernels/sampling/gpu kernels/gpu

kv_transfer/api kv_transfer/memory kv_transfer/sockets kv_transfer/handoff kv_transfer/shared_memory kv_transfer/ucx
kv_transfer/nccl kv_transfer/transports kv_transfer

router/machine router/process router/tls router/structured_output/regex router/structured_output/json_schema
router/protocol/messages router/protocol
router/tensors router/batching/resources router/batching/responses router/batching
router/config router/model_files router/model_files/sources
router/model_files/cache router/structured_output
router/http router/http/failover/holder router/http/failover router/access router/store
router/registry router/requests router/status router/tensor_memory
router/model_repository/config router/model_repository/sources router/model_repository
router/instances/frames router/instances/placement router/instances
router/infer/lives router/infer/requests router/infer/routing router/infer router/infer/scaling
router/infer/ensembles
router/observability/explain router/observability/tracing router/observability
router/observability/tensor_metrics
router/text/template router/text/memory router/text
router/parsers/description router/parsers/formats router/parsers/readers
router/parsers/grammar router/parsers router/catalog
router/placement/policies router/placement router/placement/prefix router/placement/retention
router/page_budget router/dispatch/queue router/dispatch/table router/dispatch/migration router/dispatch/mirror
router/dispatch
router/beam_search router/api router/api/generation/answer router/api/openai/answer router/api/openai/schema
router/api/openai/body router/api/generation router/api/openai
router/api/openai/responses/body router/api/openai/responses/answer router/api/openai/responses
router/api/openai/files router/api/openai/batches
router/api/kserve router/api/kserve/http/bodies router/api/kserve/http router/api/kserve/grpc/messages
router/api/kserve/grpc/calls router/api/kserve/grpc/inference router/api/kserve/grpc
router/api/tensors/models router/api/tensors/text router/api/tensors/embeddings
router/api/tensors/rerank router/api/tensors/chat router/api/tensors/images
router/api/tensors/audio router/api/tensors
router/api/anthropic router/api/admin router/api/ui
router/api/pages
router/language_backends/settings router/language_backends/generation router/language_backends/forms
router/language_backends
router/extensions router/front router/frontends router

workers/models/directory workers/models/sharding workers/config workers/models/description workers/models/interface
workers/models/weights workers/models/general/graph workers/models/general/attention
workers/models/general/execution workers/models/general/cached workers/models/general
workers/models/general/examination
workers/models
workers/engine/limits workers/engine/structured_output workers/engine/processors workers/engine/plan
workers/engine/sampling
workers/engine/execution workers/engine/execution/gpu
workers/interface workers/retention workers/engine/kv_cache workers/engine/scheduling workers/engine
workers/process
workers/backends workers/backends/python/model_api/tensors workers/backends/python/model_api
workers/backends/python/import_path workers/backends/python/instance/memory workers/backends/python/instance/wire
workers/backends/python/instance workers/backends/python workers/backends/onnxruntime workers/backends/pytorch
workers/backends/openvino workers/backends/trees
workers/backends/hosting workers/instances
workers/transfers workers/telemetry/tracing workers/telemetry workers/group workers/roles workers workers/mock/script
workers/mock

cluster/processes cluster/terminal cluster/config cluster/access cluster/fleet cluster/state cluster/history
cluster/repository
cluster/planner/model cluster/planner cluster/planner/instances cluster/planner/shared
cluster/config/loading cluster/ray
cluster/admin_api/client cluster/update cluster/admin_api cluster/triton_flags cluster/sizing
cluster/supervisor/members cluster/supervisor cluster/models
cluster/in_process/interface cluster/in_process/tensors cluster/in_process/language
cluster/in_process/running cluster/in_process/requests cluster/in_process
cluster/driver cluster/commands/checking cluster/commands
cluster/tools/workload cluster/tools/report cluster/tools/batch cluster/tools/conformance
cluster/tools/bench/client cluster/tools/bench/load cluster/tools/sim/hardware cluster/tools/bench/profiling
cluster/tools/bench/tensors/clients cluster/tools/bench/tensors
cluster/tools/bench cluster/tools/sim/engine cluster/tools/sim/worker cluster/tools/sim
cluster/tools/sim/batching cluster/tools/plan/tensors cluster/tools/plan cluster/tools/top cluster
"""
FOLDERS = FLOORS.split()
MAX_MODULES = 14  # in a folder


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


def folder_of(path: Path) -> str:
    return str(path.parent.relative_to(ROOT))


def folder_edges() -> dict[tuple[str, str], list[str]]:
    """Which folders import which others, with the imports."""
    modules = all_modules()
    edges: dict[tuple[str, str], list[str]] = {}
    for path in modules.values():
        for line, imported in imported_modules(path.read_text(encoding="utf-8")):
            target = modules.get(imported) or modules.get(imported.rpartition(".")[0])
            if target is not None and folder_of(target) != folder_of(path):
                edge = folder_of(path), folder_of(target)
                edges.setdefault(edge, []).append(f"{path.relative_to(ROOT)}:{line} imports {imported}")
    return edges


def test_every_folder_imports_only_folders_below_it() -> None:
    floor = {folder: index for index, folder in enumerate(FOLDERS)}
    assert len(floor) == len(FOLDERS)
    edges = folder_edges()
    unlisted = {folder for edge in edges for folder in edge} - floor.keys()
    assert not unlisted, f"where in FOLDERS do they belong? {sorted(unlisted)}"
    wrong = [text for edge, imports in edges.items() if floor[edge[0]] < floor[edge[1]] for text in imports]
    assert not wrong, "\n".join(wrong)
    assert not [folder for folder in FOLDERS if not any((ROOT / folder).glob("*.py"))]


def test_a_folder_is_one_concept_that_its_first_lines_name() -> None:
    folders = {path.parent for path in all_modules().values()}
    wrong = []
    for folder in sorted(folders):
        modules = [path for path in folder.glob("*.py") if path.name != "__init__.py"]
        if len(modules) > MAX_MODULES:
            wrong.append(f"{folder.relative_to(ROOT)}: {len(modules)} modules")
        init = folder / "__init__.py"
        if folder.parent != ROOT and not (init.exists() and ast.get_docstring(ast.parse(init.read_text()))):
            wrong.append(f"{folder.relative_to(ROOT)}/__init__.py: does not say what the folder is for")
    assert not wrong, "\n".join(wrong)


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
