"""What `slipstream batch` remembers beside its output, so that the same command goes on with it."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path

from slipstream.cluster.terminal.command_error import CommandError


@dataclass(slots=True)
class BatchProgress:
    """`digest` is that of the input. `batch_ids` and `file_ids` (of the input) have one for each part that was sent so
    far. `path` is where this is kept."""

    path: Path
    digest: str
    batch_ids: list[str] = field(default_factory=list)
    file_ids: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, path: Path, digest: str) -> BatchProgress:
        """That of an earlier call, or a new one. Raises CommandError if it belongs to another input."""
        try:
            fields = json.loads(path.read_text())
            found = cls(path, fields["digest"], list(fields["batch_ids"]), list(fields["file_ids"]))
        except FileNotFoundError:
            return cls(path, digest)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise CommandError(f"{path} cannot be read ({error}); remove it to begin anew") from error
        if found.digest != digest:
            raise CommandError(f"{path} belongs to another input, or the input has changed; remove it to begin anew")
        return found

    def save(self) -> None:
        """Raises CommandError."""
        new = self.path.with_name(f"{self.path.name}.new")
        fields = {name: value for name, value in asdict(self).items() if name != "path"}
        try:
            new.write_text(json.dumps(fields))
            os.replace(new, self.path)
        except OSError as error:
            raise CommandError(f"{self.path} cannot be written: {error.strerror}") from error
