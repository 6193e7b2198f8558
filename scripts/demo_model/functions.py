"""The short functions in a Python source file."""

from __future__ import annotations

import ast
import textwrap
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Function:
    """A function of the corpus: `source` is dedented, `summary` its docstring's first paragraph in one line or ""."""

    name: str
    arguments: str
    summary: str
    source: str


def functions_in(source: str) -> list[Function]:
    """Functions of 2 to 30 lines and at most 1,000 characters, methods and nested ones included."""
    lines = source.splitlines()
    functions = []
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or node.end_lineno is None:
            continue
        body = textwrap.dedent("\n".join(lines[node.lineno - 1 : node.end_lineno]))
        if "\n" in body and body.count("\n") < 30 and len(body) <= 1000:
            summary = " ".join((ast.get_docstring(node) or "").split("\n\n")[0].split())
            functions.append(Function(node.name, ast.unparse(node.args), summary[:200], body))
    return functions
