"""Writes a repository of example models, and the configuration that serves them at OpenAI's endpoints.

.venv/bin/python -m scripts.tensor_examples.main /tmp/examples
slipstream serve /tmp/examples/serve.yaml
"""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path

import click

from scripts.tensor_examples.onnx_encoder import write_encoder

HERE = Path(__file__).resolve().parent
TOKENIZER = HERE.parents[1] / "models/slipstream-demo"
SERVE = """\
repository:
  paths: [repository]
  endpoints:
    embeddings: {encoder: {aliases: [text-embedding-3-small]}}
    rerank: {reranker: {embeddings: encoder}}
    transcriptions: {keypad: {aliases: [whisper-1]}}
"""
PAINTER = "    images: {painter: {aliases: [dall-e-2]}}\n"


@click.command()
@click.argument("folder", type=click.Path(path_type=Path))
def main(folder: Path) -> None:
    """Writes into FOLDER, which must not exist."""
    folder.mkdir(parents=True)
    write_examples(folder)
    click.echo(f"slipstream serve {folder / 'serve.yaml'}")


def write_examples(folder: Path) -> None:
    repository = folder / "repository"
    shutil.copytree(HERE / "repository" / "keypad", repository / "keypad")
    write_encoder(repository / "encoder", TOKENIZER)
    serve = SERVE
    if importlib.util.find_spec("diffusers") is not None:  # the painter needs it
        shutil.copytree(HERE / "repository" / "painter", repository / "painter")
        serve += PAINTER
    (folder / "serve.yaml").write_text(serve)


if __name__ == "__main__":
    main()
