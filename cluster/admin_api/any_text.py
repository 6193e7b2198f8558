"""Names in paths that may be any text."""

from __future__ import annotations

from starlette.convertors import PathConvertor, register_url_convertor


class AnyText(PathConvertor):
    """Matches any text as a name, even with slashes and newlines, so that the answer can say that nothing has it."""

    regex = "(?s:.*)"


def allow_any_text() -> None:
    """Paths may have `{name:any}` from now on."""
    register_url_convertor("any", AnyText())
