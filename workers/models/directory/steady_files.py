"""The files of a model's directory while a worker loads them: what it has in memory afterwards is what it looked at.

    files = SteadyFiles.verified(model_dir, manifest)   they are those of the version that is to be served
    ... load ...
    files.check()                                       and have been so all the time

What was opened in between had the content that was verified, because a file that is written, replaced or put back
has another stamp afterwards.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from slipstream.router.model_files.file_digest import DigestCache, FilesChanged, FileStamp
from slipstream.router.model_files.manifest import Manifest, is_weights, served_files


@dataclass(frozen=True, slots=True)
class SteadyFiles:
    """The stamps that the files had, by name, and what their contents should be, if that is known."""

    model_dir: Path
    stamps: dict[str, FileStamp]
    manifest: Manifest | None = None

    @classmethod
    def of(cls, model_dir: Path) -> SteadyFiles:
        """For a directory without a manifest: its files are served unchecked."""
        return cls(model_dir, _stamps(model_dir))

    @classmethod
    def verified(cls, model_dir: Path, manifest: Manifest) -> SteadyFiles:
        """Reads files whose content is not known on this machine. Raises FilesChanged."""
        return cls(model_dir, manifest.verify(model_dir, DigestCache.of_user()), manifest)

    @property
    def weights_key(self) -> str:
        """Is another one for other weights: their digest or, if that is not known, the files with their stamps."""
        if self.manifest is not None:
            return self.manifest.weights_digest
        weights = {name: stamp for name, stamp in self.stamps.items() if is_weights(name)}
        return repr([(str((self.model_dir / name).resolve()), stamp) for name, stamp in sorted(weights.items())])

    def check(self) -> None:
        """Raises FilesChanged if a file was written, exchanged, added or removed since."""
        now = _stamps(self.model_dir)
        for name in sorted(self.stamps.keys() | now.keys()):
            if self.stamps.get(name) != now.get(name):
                raise FilesChanged(f"{self.model_dir / name} was changed while the model was loaded")


def _stamps(model_dir: Path) -> dict[str, FileStamp]:
    try:
        return {name: FileStamp.of(model_dir / name) for name in served_files(model_dir)}
    except OSError as error:
        raise FilesChanged(f"{error.filename} cannot be read: {error.strerror}") from None
