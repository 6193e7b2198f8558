"""Commands of instances whose models a backend computes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from slipstream.router.instances.messages import StartInstance
from slipstream.workers.backends.hosting.launch import backend_command
from slipstream.workers.instances.instance_launch import instance_launch
from slipstream.workers.instances.launch_command import InstanceContact, LaunchCommand, Launcher

PYTHON = "python"
PYTHON_BACKEND = "model.py"  # of a backend that is a Python model for all of its models
KINDS = {"KIND_CPU": "CPU", "KIND_GPU": "GPU", "KIND_MODEL": "MODEL"}


class BackendLauncher:
    """For all backends. `python` launches models that are written in Python, and those whose backend is: its code then
    stands in place of the model's."""

    def __init__(self, python: Launcher) -> None:
        self._python = python

    def __call__(self, start: StartInstance, contact: InstanceContact) -> LaunchCommand:
        if start.backend == PYTHON:
            return self._python(start, contact)
        if Path(start.backend_file).name == PYTHON_BACKEND:
            return self._python(replace(start, model_file=start.backend_file), contact)
        backend = {
            "name": start.backend,
            "file": start.backend_file,
            "version_folder": start.version_folder,
            "kind": KINDS[start.kind],
            "device": start.device,
            "settings": dict(start.settings),
        }
        command = backend_command(instance_launch(start, contact, backend))
        return LaunchCommand(list(command.argv), command.env)
