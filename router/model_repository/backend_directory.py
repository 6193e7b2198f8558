"""Backends that do not belong to Slipstream: a folder for each, in a directory that the configuration names."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from slipstream.router.model_repository.config.backends import LANGUAGE_BACKENDS

FILES = ("backend.py", "model.py")  # a module with our protocol; Python code for all models of the backend, as Triton's
OWN = {"python", *LANGUAGE_BACKENDS}  # whose models are not in the hands of one backend's file


@dataclass(frozen=True, slots=True)
class BackendDirectory:
    """`folder` None: there is none. A backend that is found here is used in place of one of Slipstream's own."""

    folder: Path | None = None

    def file_of(self, backend: str) -> Path | None:
        """The code of a backend; None: it is not here."""
        if self.folder is None or backend in OWN or not is_folder_name(backend):
            return None
        candidates = (self.folder / backend / name for name in FILES)
        return next((path for path in candidates if path.is_file()), None)


def is_folder_name(name: str) -> bool:
    return name not in ("", ".", "..") and "/" not in name and "\0" not in name
