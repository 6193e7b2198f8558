"""Makes the planner that the configuration names."""

from __future__ import annotations

import importlib
import os
import sys

from slipstream.cluster.config.planner_config import PlannerConfig
from slipstream.cluster.planner.planner_decision import Planner
from slipstream.cluster.planner.slo_planner import SloPlanner


def load_planner(config: PlannerConfig) -> Planner:
    """The default one, or the class called `config.class_name`, made with the configuration. Raises ValueError."""
    if config.class_name is None:
        return SloPlanner(config)
    module_name, _, name = config.class_name.rpartition(".")
    if (here := os.getcwd()) not in sys.path:  # `check` and the driver look there last, for a planner of one's own
        sys.path.append(here)
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise ValueError(f"class_name: cannot import {module_name}: {error}") from error
    made = getattr(module, name, None)
    if not isinstance(made, type):
        raise ValueError(f"class_name: {module_name} has no class {name}")
    planner = made(config)
    if not callable(getattr(planner, "decide", None)):
        raise ValueError(f"class_name: {config.class_name} has no method decide(signals, fleet, now)")
    return planner  # type: ignore[no-any-return]
