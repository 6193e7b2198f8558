"""A model in a folder of a web server. A server gives no list of files, so each name that a model's file may have is
asked for."""

from __future__ import annotations

import base64
import http.client
import json
import netrc
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any
from urllib.parse import quote

from slipstream.router.model_files.manifest import INDEX, NAMES
from slipstream.router.model_files.sources.checksum import Checksum
from slipstream.router.model_files.sources.http_range import range_header, skipped
from slipstream.router.model_files.sources.sums_file import SUMS_FILE
from slipstream.router.model_files.sources.weights_source import (
    MAX_JSON_BYTES,
    Listing,
    SourceError,
    SourceFile,
    SourceRefused,
    SourceUnreachable,
    read_range,
)
from slipstream.router.model_files.sources.weights_url import WeightsUrl

TIMEOUT_S = 30.0
PIECE_BYTES = 1 << 20
NUM_ASKING = 8
# Also asked for, to say what is there instead of safetensors.
OTHER_WEIGHTS = ("pytorch_model.bin", "pytorch_model.bin.index.json")


class WebSource:
    def __init__(self, url: WeightsUrl) -> None:
        self.url = url
        self._opener = urllib.request.build_opener(_HttpsOnly())
        self._login = _login_for(url.location.partition("/")[0].partition(":")[0])

    def listing(self) -> Listing:
        files = {file.name: file for file in self._present((*NAMES, *OTHER_WEIGHTS, SUMS_FILE))}
        if not files:
            raise SourceRefused(f"{self.url}: there is no config.json")
        if INDEX in files and files[INDEX].num_bytes <= MAX_JSON_BYTES:  # else the version is refused
            index = read_range(self, files[INDEX], 0, files[INDEX].num_bytes)
            files |= {file.name: file for file in self._present(_shards(index))}
        return Listing(tuple(files.values()))

    @contextmanager
    def stream(self, file: SourceFile, begin: int, end: int) -> Iterator[Iterator[bytes]]:
        headers = range_header(begin, end, file.num_bytes)
        if headers and file.stamp.startswith('"'):  # a strong ETag: another content is sent from its beginning
            headers["If-Range"] = file.stamp
        with self._in_sentences(file.name):
            response = self._open("GET", file.name, headers)
        with response:  # not in sentences: what the reader does with the bytes may fail, too
            yield skipped(self._pieces(file.name, response), 0 if response.status == 206 else begin, end - begin)

    def checksum(self, file: SourceFile) -> Checksum | None:
        return None

    def local_copy(self, file: SourceFile) -> Path | None:
        return None

    def _pieces(self, name: str, response: Any) -> Iterator[bytes]:
        while True:
            with self._in_sentences(name):
                piece = response.read1(PIECE_BYTES)
            if not piece:
                return
            yield piece

    def _present(self, names: tuple[str, ...]) -> list[SourceFile]:
        with ThreadPoolExecutor(NUM_ASKING) as asking:
            return [file for file in asking.map(self._head, names) if file is not None]

    def _head(self, name: str) -> SourceFile | None:
        with self._in_sentences(name):
            try:
                with self._open("HEAD", name, {}) as response:
                    headers = response.headers
            except urllib.error.HTTPError as error:
                if error.code in (404, 410):
                    return None
                raise
        length = headers.get("Content-Length", "")
        if not length.isdigit():
            raise SourceRefused(f"{self.url}: the server does not say how large {name} is")
        return SourceFile(name, int(length), headers.get("ETag") or headers.get("Last-Modified") or "")

    def _open(self, method: str, name: str, headers: dict[str, str]) -> Any:
        host, _, folder = self.url.location.partition("/")
        address = f"https://{host}/{quote(f'{folder}/{name}'.lstrip('/'))}"
        request = urllib.request.Request(address, method=method, headers={"Accept-Encoding": "identity", **headers})
        request.add_header("User-Agent", "slipstream")
        if self._login is not None:
            request.add_unredirected_header("Authorization", self._login)
        return self._opener.open(request, timeout=TIMEOUT_S)

    @contextmanager
    def _in_sentences(self, name: str) -> Iterator[None]:
        try:
            yield
        except SourceError:
            raise
        except urllib.error.HTTPError as error:
            if error.code in (401, 403):
                reason = "the server refuses access" + ("" if self._login else " (~/.netrc has no password for it)")
                raise SourceRefused(f"{self.url}: {reason}") from None
            text = f"{self.url}: the server answers {error.code} for {name}"
            passing = error.code in (408, 429) or error.code >= 500
            raise (SourceUnreachable(text) if passing else SourceRefused(text)) from None
        except (OSError, http.client.HTTPException) as error:
            cause = error.reason if isinstance(error, urllib.error.URLError) else error
            reason = str(cause) or type(cause).__name__
            raise SourceUnreachable(f"{self.url}: {name} cannot be read: {reason}") from None


class _HttpsOnly(urllib.request.HTTPRedirectHandler):
    """Follows no redirection to a connection that is not encrypted."""

    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: http.client.HTTPMessage,
        newurl: str,
    ) -> urllib.request.Request | None:
        if not newurl.startswith("https://"):
            raise SourceRefused(f"{req.full_url}: the server redirects to {newurl}, which is not https://")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _login_for(host: str) -> str | None:
    """The value of the Authorization header by the user's ~/.netrc."""
    try:
        found = netrc.netrc().authenticators(host)
    except (OSError, RuntimeError, netrc.NetrcParseError):
        return None
    if found is None:
        return None
    return "Basic " + base64.b64encode(f"{found[0]}:{found[2]}".encode()).decode()


def _shards(index: bytes) -> tuple[str, ...]:
    """The files that an index names. What is wrong with an index is said when the version is planned."""
    try:
        return tuple(sorted({name for name in json.loads(index)["weight_map"].values() if Path(name).name == name}))
    except (ValueError, TypeError, KeyError, AttributeError):
        return ()
