"""One name for one thing: a public class has a name that no other one has."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("cluster", "kv_transfer", "router", "workers")

# The public names of Triton's Python APIs, which programs and models import; the server has some of its own beside.
TRITONS = {
    "DataType",
    "InferInput",
    "InferenceRequest",
    "InferenceResponse",
    "MemoryType",
    "Metric",
    "MetricFamily",
    "MetricKind",
    "Model",
    "ModelConfig",
    "ResponseIterator",
    "Tensor",
    "TritonError",
}
# Two each, of folders that have nothing to do with each other.
OTHERS = {
    "Checkpoint",
    "Conversation",
    "LayerWeights",
    "Offer",
    "PlannerLoop",
    "Turn",
}


def test_no_name_stands_for_two_classes() -> None:
    places = defaultdict(list)
    for folder in FOLDERS:
        for path in (ROOT / folder).rglob("*.py"):
            for node in ast.parse(path.read_text()).body:
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    places[node.name].append(str(path.relative_to(ROOT)))
    doubled = {name: found for name, found in places.items() if len(found) > 1}
    assert {name: found for name, found in doubled.items() if name not in TRITONS | OTHERS} == {}
    assert OTHERS - doubled.keys() == set(), "is unique now: take it out of the list"
