"""Makes the planner that the configuration names."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from slipstream.cluster.config.planner_config import PlannerConfig
from slipstream.cluster.planner.planner_decision import Planner
from slipstream.cluster.planner.pool_prices import NO_PRICES, PoolPrices
from slipstream.cluster.planner.slo_planner import SloPlanner


def load_planner(config: PlannerConfig, prices: PoolPrices = NO_PRICES) -> Planner:
    """The default one, or the class called `config.class_name`, made with the configuration. Raises ValueError."""
    if config.objective == "cost" and prices.decode is None:
        raise ValueError("objective: cost needs price_per_hour of the workers")
    if config.class_name is None:
        return SloPlanner(config, replace(prices, is_objective=config.objective == "cost"))
    planner: Planner = planner_class(config.class_name)(config)
    return planner


def planner_class(class_name: str) -> Callable[..., Any]:
    """A planner of one's own. Raises ValueError that says what is missing."""
    module_name, _, name = class_name.rpartition(".")
    if (here := os.getcwd()) not in sys.path:  # `check` and the driver look there last, for a planner of one's own
        sys.path.append(here)
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise ValueError(f"class_name: cannot import {module_name}: {error}") from error
    made = getattr(module, name, None)
    if not isinstance(made, type):
        raise ValueError(f"class_name: {module_name} has no class {name}")
    if not callable(getattr(made, "decide", None)):
        raise ValueError(f"class_name: {class_name} has no method decide(signals, fleet, now)")
    return made
