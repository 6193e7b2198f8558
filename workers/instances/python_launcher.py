"""Commands of instances of Python models."""

from __future__ import annotations

from pathlib import Path

from slipstream.router.instances.messages import StartInstance
from slipstream.router.process.cache_folder import cache_folder
from slipstream.workers.backends.python.execution_environment import ExecutionEnvironmentError
from slipstream.workers.backends.python.launch import launch_command
from slipstream.workers.instances.instance_launch import instance_launch
from slipstream.workers.instances.launch_command import InstanceContact, LaunchCommand


class PythonLauncher:
    """`cache` is the folder below which packed environments are unpacked; None: the user's cache. `python` is the
    interpreter of models that bring none along; "": this one."""

    def __init__(self, cache: Path | None = None, python: str = "") -> None:
        self._cache = cache
        self._python = python

    def __call__(self, start: StartInstance, contact: InstanceContact) -> LaunchCommand:
        cache = self._cache or cache_folder()
        if cache is None:
            raise ValueError("there is no folder for Python environments: this user has no home")
        launch = instance_launch(start, contact, {})
        try:
            command = launch_command(launch, cache / "python_environments", python=self._python)
        except ExecutionEnvironmentError as error:
            raise ValueError(str(error)) from error
        return LaunchCommand(list(command.argv), command.env, str(command.cwd or ""))
