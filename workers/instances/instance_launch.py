"""What the process of an instance is given, by the router's message."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from slipstream.router.instances.messages import StartInstance
from slipstream.workers.backends.python.launch import InstanceLaunch
from slipstream.workers.instances.launch_command import InstanceContact


def instance_launch(start: StartInstance, contact: InstanceContact, backend: Mapping[str, Any]) -> InstanceLaunch:
    """`backend` says which backend computes the model; empty: the model is written in Python."""
    return InstanceLaunch(
        contact.launch,
        contact.secret,
        contact.address,
        contact.memory_id,
        start.name,
        start.version,
        Path(start.folder),
        Path(start.version_folder) / start.model_file,
        start.parameters,
        start.environment,
        backend,
    )
