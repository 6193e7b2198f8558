"""Commands of instances whose models a backend computes."""

from __future__ import annotations

from pathlib import Path

from slipstream.router.instances.messages import StartInstance
from slipstream.workers.backends.hosting.launch import backend_command
from slipstream.workers.backends.python.launch import InstanceLaunch
from slipstream.workers.instances.launch_command import InstanceContact, LaunchCommand, Launcher

KINDS = {"KIND_CPU": "CPU", "KIND_GPU": "GPU", "KIND_MODEL": "MODEL"}


class BackendLauncher:
    """For all backends but `python`, which stands in `others` with a launcher of its own."""

    def __init__(self, others: dict[str, Launcher]) -> None:
        self._others = others

    def __call__(self, start: StartInstance, contact: InstanceContact) -> LaunchCommand:
        other = self._others.get(start.backend)
        if other is not None:
            return other(start, contact)
        launch = InstanceLaunch(
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
            {
                "name": start.backend,
                "version_folder": start.version_folder,
                "kind": KINDS[start.kind],
                "device": start.device,
                "settings": dict(start.settings),
            },
        )
        command = backend_command(launch)
        return LaunchCommand(list(command.argv), command.env)
