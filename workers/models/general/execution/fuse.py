"""Puts native kernels in the place of what a graph computes with torch: products, norms, rotary embedding, gates.

Parts are recognised by what they compute, so a norm is one in whatever class a model has it. What is not recognised
stays as it is.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

from slipstream.workers.models.general.execution.norms import Norms
from slipstream.workers.models.general.execution.products import Products
from slipstream.workers.models.general.execution.rotations import Rotations
from slipstream.workers.models.general.execution.uniform import make_uniform
from slipstream.workers.models.general.graph.simplify import has_effect
from slipstream.workers.models.general.graph.step_graph import StepGraph


@dataclass(slots=True)
class Fused:
    """How many parts were put in place of others."""

    products: int = 0
    gates: int = 0  # of products
    activations: int = 0  # of products
    norms: int = 0
    rotations: int = 0
    experts: int = 0  # layers of them


def fuse(graph: StepGraph, library: ctypes.CDLL) -> Fused:
    fused = Fused()
    make_uniform(graph)
    fused.norms = Norms(graph).run()
    fused.products, fused.gates, fused.activations = Products(graph, library).run()
    fused.rotations = Rotations(graph).run()
    graph.drop_unused(has_effect)
    return fused
