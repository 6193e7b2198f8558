"""Writes docs/reference/command_line.md from the commands themselves."""

from __future__ import annotations

import inspect
import re
import sys
from pathlib import Path

import click

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from scripts.reference.tables import cell  # noqa: E402
from slipstream.cluster.cli import main as cli  # noqa: E402

PAGE = ROOT / "docs" / "reference" / "command_line.md"
HEAD = """# Command line

`slipstream COMMAND --help` shows the same. This page is written by `scripts/reference/command_line.py`.
"""


def option_row(option: click.Option, context: click.Context) -> str:
    """A line of a table: names with the kind of their value, what it is, its default."""
    record = option.get_help_record(context)
    names, text = record if record is not None else (", ".join(option.opts), "")
    return f"| `{cell(names)}` | {cell(text)} |"


def section(name: str, command: click.Command) -> str:
    context = click.Context(command, info_name=f"slipstream {name}")
    usage = " ".join(command.collect_usage_pieces(context))
    about = re.sub(r"\x08\n?", "", inspect.cleandoc(command.help or ""))
    # What click is to leave as it is, lines of a shell.
    paragraphs = [
        f"```\n{part}\n```" if part.startswith("slipstream ") else " ".join(part.split())
        for part in about.split("\n\n")
    ]
    lines = [f"## {name}", "", f"`slipstream {name} {usage}`", "", "\n\n".join(paragraphs), ""]
    options = [one for one in command.get_params(context) if isinstance(one, click.Option) and not one.hidden]
    options = [one for one in options if "--help" not in one.opts]  # which every command has
    if options:
        lines += ["| option | |", "|---|---|", *[option_row(option, context) for option in options], ""]
    if isinstance(command, click.Group):
        for sub in command.list_commands(context):
            found = command.get_command(context, sub)
            assert found is not None
            lines.append(section(f"{name} {sub}", found).replace("## ", "### ", 1))
    return "\n".join(lines)


def page() -> str:
    """The whole page."""
    context = click.Context(cli)
    sections = []
    for name in cli.list_commands(context):
        command = cli.get_command(context, name)
        assert command is not None
        sections.append(section(name, command))
    return HEAD + "\n" + "\n".join(sections).rstrip() + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
