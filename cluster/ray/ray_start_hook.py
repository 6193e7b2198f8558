"""Leaves out parts of a cluster's own Ray. `ray start` calls this before it starts anything (RAY_START_HOOK).

Ray's options cannot do this. With `--include-dashboard=false`, the dashboard's process still starts, without pages; it
imports all of Ray, and `ray start` waits for it. The node's agent does the same, and there is always a server for Ray's
thin clients. Each of them is a Python process that takes seconds of a core while the cluster starts, and memory as long
as it runs. All of this is internal to Ray and may change with any version, so `local_ray` uses the hook only with
versions that it was tried with.
"""

from __future__ import annotations

from typing import Any

from ray._private import ray_constants, services, utils

from slipstream.router.process.module_command import module_options

AGENT_MODULE = "slipstream.cluster.ray.ray_agent"
NO_DASHBOARD = "", None  # its URL and its process: what Ray returns for one that could not be started


def leave_out(params: Any, is_head: bool) -> None:
    """`params` are Ray's RayParams."""
    params.ray_client_server_port = None
    services.start_api_server = lambda *_, **__: NO_DASHBOARD
    utils.get_dashboard_dependency_error = lambda: ImportError("left out")  # asks for the small form of the agent
    python_command = services._build_python_executable_command_memory_profileable

    def agent_command(component: str, *arguments: Any, **options: Any) -> list[str]:
        command: list[str] = python_command(component, *arguments, **options)
        is_agent = component == ray_constants.PROCESS_TYPE_DASHBOARD_AGENT
        return [*command, *module_options(AGENT_MODULE)] if is_agent else command

    services._build_python_executable_command_memory_profileable = agent_command
