"""The files of the page, as they were built from `router/ui`. They hold nothing of the cluster, so they need no key."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
from dataclasses import dataclass
from pathlib import Path

from slipstream.router.api.exchange_context import ApiExchange, ApiRoutes
from slipstream.router.api.ui.built_page import ASSETS, INDEX, is_built
from slipstream.router.http.http_error import HttpError
from slipstream.router.http.reader import Request

PREFIX = "/ui/"
HASHED = "assets/"  # files below have a hash of their contents in their names
NOT_BUILT = "The page has not been built: run scripts/ui/build, or install a wheel, which has it."
NOT_BUILT_PAGE = f"""<!doctype html>
<html lang="en">
<meta charset="utf-8">
<title>Slipstream</title>
<h1>No page</h1>
<p>{NOT_BUILT}
"""
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".json": "application/json",
    ".png": "image/png",
    ".woff2": "font/woff2",
}
# The page comes from this server alone, runs no script from anywhere else, and is shown in no frame.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data: blob:; "
    "media-src 'self' blob:; font-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = (
    ("content-security-policy", POLICY),
    ("x-content-type-options", "nosniff"),
    ("referrer-policy", "no-referrer"),
    ("vary", "accept-encoding"),
)
FOR_EVER = "public, max-age=31536000, immutable"
ASK_AGAIN = "no-cache"


@dataclass(frozen=True, slots=True)
class PageFile:
    """A file with what is sent of it. `zipped` is None where it would not be smaller. `tag` is of its contents."""

    content_type: str
    data: bytes
    zipped: bytes | None
    tag: str

    @classmethod
    def of(cls, name: str, data: bytes) -> PageFile:
        content_type = TYPES.get(Path(name).suffix, "application/octet-stream")
        zipped = gzip.compress(data, 9, mtime=0)
        tag = hashlib.sha256(data).hexdigest()[:32]
        return cls(content_type, data, zipped if len(zipped) < len(data) else None, tag)


class PageFiles:
    """Reads the files when the first of them is asked for."""

    def __init__(self, folder: Path = ASSETS) -> None:
        self._folder = folder
        self._files: dict[str, PageFile] | None = None

    def add_to(self, routes: ApiRoutes) -> None:
        """Register the page."""
        routes.add("GET", "/ui", self.to_folder, is_described=False)
        routes.add("GET", PREFIX, self.index, is_described=False)
        routes.add_item("GET", PREFIX, "", self.file, is_described=False)

    async def to_folder(self, request: Request, exchange: ApiExchange) -> None:
        """The page's own links are relative to its folder."""
        exchange.respond(308, b"", headers=(("location", "ui/"),))

    async def index(self, request: Request, exchange: ApiExchange) -> None:
        """The page for people."""
        await self.file(request, exchange, INDEX)

    async def file(self, request: Request, exchange: ApiExchange, name: str) -> None:
        """Raises HttpError 404 for a file that the page does not have."""
        if self._files is None:
            self._files = await asyncio.to_thread(read_files, self._folder)
        found = self._files.get(name)
        if found is None and name == INDEX:
            exchange.respond(404, NOT_BUILT_PAGE.encode(), TYPES[".html"], HEADERS)
            return
        if found is None:
            raise HttpError(404, f"The page has no file {name[:64]!r}.", code="not_found")
        caching = FOR_EVER if name.startswith(HASHED) else ASK_AGAIN
        headers = [*HEADERS, ("cache-control", caching)]
        data, etag = found.data, f'"{found.tag}"'
        if found.zipped is not None and takes_gzip(request.headers.get(b"accept-encoding", b"")):
            # Other bytes have another tag, and a 304 says nothing of an encoding.
            data, etag = found.zipped, f'"{found.tag}-gzip"'
        headers.append(("etag", etag))
        if matches(request.headers.get(b"if-none-match", b""), etag.encode()):
            exchange.respond(304, b"", found.content_type, headers)
            return
        if data is found.zipped:
            headers.append(("content-encoding", "gzip"))
        exchange.respond(200, data, found.content_type, headers)


def matches(if_none_match: bytes, etag: bytes) -> bool:
    """Whether the tag is listed, as RFC 9110 compares it: weak tags count as strong ones, and `*` is any tag."""
    listed = [tag.strip() for tag in if_none_match.split(b",")]
    return listed == [b"*"] or etag in [tag.removeprefix(b"W/") for tag in listed]


def takes_gzip(accept_encoding: bytes) -> bool:
    """Whether gzip is listed, and not with the weight 0."""
    for listed in accept_encoding.lower().split(b","):
        coding, _, weight = listed.replace(b" ", b"").partition(b";q=")
        if coding == b"gzip":
            return not weight or weight.strip(b"0.") != b""
    return False


def read_files(folder: Path) -> dict[str, PageFile]:
    """By path below the folder; empty if there is none."""
    if not is_built(folder):
        return {}
    paths = [path for path in folder.rglob("*") if path.is_file()]
    return {path.relative_to(folder).as_posix(): PageFile.of(path.name, path.read_bytes()) for path in paths}
