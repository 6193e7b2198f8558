"""Model folders of a repository, as tests need them."""

from __future__ import annotations

from pathlib import Path

TENSORS = """
input { name: "A" data_type: TYPE_FP32 dims: [ 4 ] }
output { name: "B" data_type: TYPE_FP32 dims: [ -1 ] }
"""
PYTHON = f'backend: "python" {TENSORS}'


def write_model(
    repository: Path, name: str, config: str | None = PYTHON, versions: tuple[str, ...] = ("1",), file: str = "model.py"
) -> Path:
    """The folder of the model. `config` None: it has no config.pbtxt."""
    folder = repository / name
    for version in versions:
        (folder / version).mkdir(parents=True)
        (folder / version / file).write_text("")
    if config is not None:
        folder.mkdir(exist_ok=True)
        (folder / "config.pbtxt").write_text(config)
    return folder
