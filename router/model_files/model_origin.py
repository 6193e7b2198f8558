"""Where the files in a directory of a host's model cache came from, so that other hosts can fetch the same ones."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

ORIGIN_FILE = ".slipstream-origin.json"  # in the directory of each complete version


@dataclass(frozen=True, slots=True)
class ModelOrigin:
    """`version` stands for the content of the files at `url`, in its `folder` ("": `url` itself). `cache_path` and
    `max_gib` are the settings of the model cache with which they were fetched; `cache_path` None: the default, which
    each host has in its own place."""

    url: str
    version: str
    folder: str = ""
    cache_path: str | None = None
    max_gib: float | None = None

    @classmethod
    def read(cls, model_dir: Path) -> ModelOrigin | None:
        """None for a directory that is in no model cache."""
        try:
            plain = json.loads((model_dir / ORIGIN_FILE).read_bytes())
            return cls(**{name: plain[name] for name in cls.__dataclass_fields__})
        except (OSError, ValueError, TypeError, KeyError):
            return None

    def write(self, model_dir: Path) -> None:
        """Raises OSError."""
        part = model_dir / f"{ORIGIN_FILE}.part"
        part.write_text(json.dumps(asdict(self)), encoding="utf-8")
        part.replace(model_dir / ORIGIN_FILE)
