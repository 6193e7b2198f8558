"""Ray's node agent in a small form: `python -m slipstream.cluster.ray.ray_agent AGENT_FILE OPTION...`.

Raylet cannot do without this agent. With `--minimal` it serves nothing of Ray's dashboard, but still imports all of it
to see what there is (0.5 s of a core). So here it is made to find the folder of the dashboard's modules empty.
"""

from __future__ import annotations

import runpy
import sys
from types import ModuleType

import ray.dashboard

if __name__ == "__main__":
    nothing = ModuleType("ray.dashboard.modules")
    nothing.__path__ = []
    sys.modules[nothing.__name__] = ray.dashboard.modules = nothing  # type: ignore[attr-defined]
    del sys.argv[0]
    runpy.run_path(sys.argv[0], run_name="__main__")
