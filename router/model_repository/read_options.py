"""Settings with which the models of a repository are read."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from slipstream.router.model_files.cache.host_cache import HostCache
from slipstream.router.model_repository.backend_directory import BackendDirectory
from slipstream.router.model_repository.config.backends import EXECUTED_BY_INSTANCES, LANGUAGE_BACKENDS


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """`config_name` "X": `configs/X.pbtxt` of a model is read instead of its `config.pbtxt`, where there is one.
    `auto_complete` False: the configuration is used as it stands (`--disable-auto-complete-config`). `devices` are the
    GPUs that instances may run on. Files that come with a load are written below `override_folder`; None: the system's
    folder for temporary files. Models of remote repositories are fetched into `cache`. `backends` are those that can
    be served, "" stands for ensembles; beside them those of the `backend_directory`."""

    config_name: str = ""
    auto_complete: bool = True
    devices: tuple[int, ...] = ()
    override_folder: Path | None = None
    cache: HostCache = field(default_factory=HostCache)
    backends: frozenset[str] = EXECUTED_BY_INSTANCES
    backend_directory: BackendDirectory = field(default_factory=BackendDirectory)

    def serves(self, backend: str) -> bool:
        return backend in self.backends or self.backend_directory.file_of(backend) is not None

    def completes(self, backend: str) -> bool:
        """Whether models of a backend may say what their configuration lacks."""
        if backend in EXECUTED_BY_INSTANCES or backend in LANGUAGE_BACKENDS:
            return True
        return self.backend_directory.file_of(backend) is not None
