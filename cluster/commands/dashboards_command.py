"""The command `slipstream dashboards`: the files for Prometheus and Grafana, out of the installed package."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import click

from slipstream.cluster.terminal import console

CONFIGS = Path(__file__).resolve().parents[2] / "configs"
SUFFIXES = (".json", ".yaml")
TESTS = "rules_test.yaml"  # of the rules as they are in the sources
# Where the rules have the address of the documentation: from a label of Prometheus, else a path in the sources.
DOCS_PLACE = (
    "{{ with $externalLabels.slipstream_docs }}{{ . }}/how-to/monitoring/{{ else }}docs/how-to/monitoring.md{{ end }}"
)


@click.command("dashboards")
@click.argument("folder", metavar="FOLDER", type=click.Path(file_okay=False, path_type=Path))
@click.option("--docs", metavar="URL", help="Where you serve the documentation: runbook links of alerts lead there.")
@click.option("--force", is_flag=True, help="Replace files that differ.")
def dashboards_command(folder: Path, docs: str | None, force: bool) -> None:
    """Write Grafana's dashboards (FOLDER/grafana) and Prometheus' configuration and rules (FOLDER/prometheus) of this
    version."""
    if docs is not None and not (urlsplit(docs).scheme in ("http", "https") and urlsplit(docs).netloc):
        raise click.BadParameter(f"must be a URL with http:// or https://, got {docs!r}", param_hint="--docs")
    texts = {folder / path: text for path, text in monitoring_files(docs)}
    try:
        kept = [] if force else [path for path, text in texts.items() if _differs(path, text)]
        if kept:
            console.error(f"{kept[0]} is there and differs{_and_more(len(kept) - 1)}; --force replaces what differs")
            sys.exit(1)
        for path, text in texts.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
    except OSError as error:
        console.error(f"cannot write {error.filename}: {error.strerror}")
        sys.exit(1)
    click.echo(f"{len(texts)} files in {folder}")


def monitoring_files(docs: str | None = None) -> Iterator[tuple[Path, str]]:
    """Paths below the folder, and texts. `docs` is the address of the documentation, which the rules then have."""
    for name in ("grafana", "prometheus"):
        for source in sorted((CONFIGS / name).rglob("*")):
            if source.suffix not in SUFFIXES or source.name == TESTS:
                continue
            text = source.read_text(encoding="utf-8")
            if docs is not None and source.name == "rules.yaml":
                text = text.replace(DOCS_PLACE, f"{docs.rstrip('/')}/how-to/monitoring/")
            yield source.relative_to(CONFIGS), text


def _differs(path: Path, text: str) -> bool:
    return path.exists() and path.read_text(encoding="utf-8", errors="replace") != text


def _and_more(count: int) -> str:
    return f", and {count} more" if count else ""
