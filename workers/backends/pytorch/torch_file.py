"""What kind of file a model of PyTorch is in."""

from __future__ import annotations

import zipfile
from enum import Enum
from pathlib import Path

from slipstream.workers.backends.backend import BackendError


class TorchFormat(Enum):
    """All are zip archives. SCRIPT has the code of a module, EXPORTED a graph as `torch.export.save` writes it,
    COMPILED the libraries that `aoti_compile_and_package` makes of one."""

    SCRIPT = "TorchScript"
    EXPORTED = "torch.export"
    COMPILED = "AOT Inductor"


def format_of(path: Path) -> TorchFormat:
    """Raises BackendError."""
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
    except (OSError, zipfile.BadZipFile) as error:
        raise BackendError(f"'{path}' is no archive of PyTorch: {error}", "INVALID_ARG") from error
    if any("/aotinductor/" in name for name in names):
        return TorchFormat.COMPILED
    if any("/models/" in name or name.endswith("serialized_exported_program.json") for name in names):
        return TorchFormat.EXPORTED
    if any("/code/" in name for name in names):
        return TorchFormat.SCRIPT
    text = "has weights but no code (torch.save); write it by torch.jit.save, torch.export.save or AOT Inductor"
    raise BackendError(f"'{path}' {text}", "INVALID_ARG")
