"""A hook of mkdocs: links from pages to files outside docs/ become their text, because those files are not on the site.

Where the site has the address of a repository (`repo_url`), they lead to the file there."""

from __future__ import annotations

import posixpath
import re
from typing import Any

LINK = re.compile(r"(?<!!)\[(?P<text>[^\]]+)\]\((?P<target>[^)\s]+)\)")


def on_page_markdown(markdown: str, *, page: Any, config: Any, files: Any) -> str:
    """Called by mkdocs for each page."""
    folder = posixpath.dirname(page.file.src_uri)

    def replaced(match: re.Match[str]) -> str:
        path = outside(folder, match["target"])
        if path is None:
            return match[0]
        if config.repo_url:
            return f"[{match['text']}]({config.repo_url.rstrip('/')}/blob/main/{path})"
        return match["text"]

    return LINK.sub(replaced, markdown)


def outside(folder: str, target: str) -> str | None:
    """The path from the repository's root of what a link leads to; None if that is a page, or at another address."""
    if re.match(r"[a-z]+:|#", target):
        return None
    path = posixpath.normpath(posixpath.join("docs", folder, target.partition("#")[0]))
    return None if path.startswith("docs/") or path == "docs" else path
