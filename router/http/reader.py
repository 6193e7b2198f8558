"""Bytes to HTTP/1.1 requests, without a socket or a clock, within limits.

                first byte            last header             last byte
idle ------------------------> header ------------> body -----------------> idle
  \\__________________________________|_______________|__ broken: malformed or over a limit; what follows is ignored
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal
from urllib.parse import unquote, urlsplit

import httptools

from slipstream.router.http.http_error import HttpError
from slipstream.router.http.large_body import ArrivingBody, BodyPlace, BodyPlaces

MAX_HEADERS = 128
MAX_PIPELINED_REQUESTS = 64  # in one read from the socket; small requests would multiply its bytes many times

STRANGERS_BODY_BYTES = 64 * 1024  # is kept of a body before the caller has been looked at
CHUNK_LINE_BYTES = 32  # that a chunk's size is looked for in; 16 hexadecimal digits are the most the parser takes

# Gets the Authorization header. Raises HttpError for a caller that is not to be served.
CheckCaller = Callable[[bytes], object]

CHUNK_SIZE = re.compile(rb"[0-9a-fA-F]{1,16}")

HTTP_2_PREFACE = b"PRI * HTTP/2.0\r\n"  # of a client that takes it for granted (RFC 9113, 3.4)
KEY_HEADER = b"x-api-key"  # of Anthropic's clients
# What is looked at before the body comes.
FRAMING_HEADERS = frozenset({b"content-length", b"transfer-encoding", b"authorization", KEY_HEADER, b"expect", b"host"})

ReaderState = Literal["idle", "header", "body", "broken"]


@dataclass(slots=True)
class Request:
    """One request, whole. Header names are lower-case; values of repeated headers are joined with a comma."""

    method: str
    path: str  # percent-decoded, without the query
    query: str
    headers: dict[bytes, bytes]
    body: bytes
    keep_alive: bool
    http10: bool
    large_body: BodyPlace | None = None  # instead of `body`

    def take_large_body(self) -> BodyPlace | None:
        """The large body, if there is one. The caller has to release it."""
        place, self.large_body = self.large_body, None
        return place


def authorization_of(authorization: bytes, key: bytes) -> bytes:
    """The Authorization header; if there is none, what it would be with the key in `x-api-key`."""
    return authorization if authorization or not key else b"Bearer " + key


class RequestReader:
    """Turns what arrives into `Request`s and, at most once and at the end, one `HttpError` that refuses the rest.
    httptools calls the `on_` methods, from within `feed`."""

    def __init__(
        self,
        max_header_bytes: int,
        max_body_bytes: int,
        check_caller: CheckCaller | None = None,
        path_prefix: str = "",
        body_places: BodyPlaces | None = None,
    ) -> None:
        """A path below `path_prefix` is served as what follows it. Large bodies arrive in `body_places`."""
        self.state: ReaderState = "idle"
        self.num_begun = 0
        self.expects_continue = False  # the client waits for "100 Continue" before it sends the body
        self._max_header_bytes = max_header_bytes
        self._limit_bytes = self._max_body_bytes = max_body_bytes  # of the body that comes, of any body
        self._check_caller = check_caller
        self._path_prefix = path_prefix
        self._body_places = body_places
        self._arriving: ArrivingBody | None = None  # a large body, instead of the two below
        self._parser = httptools.HttpRequestParser(self)
        self._arrived: deque[Request | HttpError] = deque()
        self._refusal: HttpError | None = None
        self._url = b""
        self._headers: list[tuple[bytes, bytes]] = []  # names in lower case
        self._header_bytes = 0
        self._kept_bytes = 0  # what the parser may keep to itself: an unfinished header or trailer has no bound there
        self._body = bytearray()  # one buffer: a list of chunks of a byte or two each would be thirty times as large
        self._whole_body = b""  # instead, as long as all of it came at once
        self._ignoring_upgrade = False
        self._chunk_bytes: int | None = None  # came of the chunk that is under way
        self._is_chunk_new = False  # since `feed` was called
        self._latest = b""  # bytes before those that `feed` was called with

    def feed(self, data: bytes) -> deque[Request | HttpError]:
        """Take what arrived. Returns what became complete, in order; the deque is the caller's."""
        if self.state == "broken":
            return deque()
        self._kept_bytes += len(data)
        self._is_chunk_new = False
        try:
            self._parse(data)
            if self._is_chunk_new:
                self._check_chunk(data)
        except httptools.HttpParserError as error:
            if data.startswith(HTTP_2_PREFACE):
                self._refusal = HttpError(505, "HTTP/2 is not served, HTTP/1.1 is.", code="http_version")
            self.refuse(self._refusal or HttpError(400, f"Malformed HTTP request: {error}", code="malformed_http"))
        else:
            if self._kept_bytes > self._max_header_bytes:
                self.refuse(self._headers_too_large())
        self._latest = (self._latest + data[-CHUNK_LINE_BYTES:])[-CHUNK_LINE_BYTES:] if self.state == "body" else b""
        arrived, self._arrived = self._arrived, deque()
        return arrived

    @property
    def progress(self) -> int:
        """Another number for each request, and for each MiB of a large body."""
        num_filled = self._arriving.num_filled if self._arriving is not None else 0
        return (self.num_begun << 32) + (num_filled >> 20)

    @property
    def body_room(self) -> memoryview | None:
        """Where what comes next may be read to, instead of being fed; then `filled` is called."""
        return self._arriving.room if self._arriving is not None else None

    def filled(self, num_bytes: int) -> deque[Request | HttpError]:
        """So many bytes have been read into `body_room`. Returns the request if it is whole now."""
        assert self._arriving is not None
        self.expects_continue = False
        if self._arriving.filled(num_bytes):
            self._append_request(self._arriving.keep_alive)
            self._parser = httptools.HttpRequestParser(self)  # the one before still waits for the body
        elif not self._arriving.make_room():
            self.refuse(no_room_for(self._arriving))
        return self.take()

    def refuse(self, error: HttpError) -> None:
        """Give up on this connection's input: `error` is the last thing that `feed` or `take` returns."""
        self.state = "broken"
        self.expects_continue = False
        self._body = bytearray()
        self._whole_body = b""
        self._drop_arriving()
        self._arrived.append(error)

    @property
    def origin(self) -> bytes | None:
        """The Origin header of the latest request, as far as it has come."""
        return next((value for name, value in self._headers if name == b"origin"), None)

    @property
    def path(self) -> str:
        """That of the latest request, as far as it has come, and as it was sent."""
        return self._below_prefix(self._url.decode("latin-1").partition("?")[0])

    def close(self) -> None:
        """Nothing more will come. The parser and this object hold each other: whatever arrived of a request would stay
        in memory until the garbage collector comes by, which it seldom does (`router.garbage`)."""
        self.state = "broken"
        self._body, self._whole_body, self._headers, self._latest = bytearray(), b"", [], b""
        self._drop_arriving()
        self._arrived.clear()
        del self._parser

    def _drop_arriving(self) -> None:
        if self._arriving is not None:
            self._arriving.place.release()
            self._arriving = None

    def take(self) -> deque[Request | HttpError]:
        """What has arrived since the last call: requests, or the error of `refuse`."""
        arrived, self._arrived = self._arrived, deque()
        return arrived

    def _parse(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            if self._parser.get_method() == b"CONNECT":
                raise self._fail(HttpError(405, "CONNECT is not allowed.", code="method_not_allowed")) from None
            # Java's HttpClient offers "Upgrade: h2c" with its first POST, and the parser then leaves the body
            # alone. A server may ignore the offer (RFC 9110, 7.8): parse the request again without it.
            version = self._parser.get_http_version().encode("ascii")
            replay = [b"%s %s HTTP/%s\r\n" % (self._parser.get_method(), self._url, version)]
            replay += [b"%s: %s\r\n" % header for header in self._headers if header[0] != b"upgrade"]
            self._parser = httptools.HttpRequestParser(self)
            self._ignoring_upgrade = False
            self._parse(b"".join(replay) + b"\r\n" + data[upgrade.args[0] :])

    def _check_chunk(self, data: bytes) -> None:
        """A chunk has begun in `data` and is not whole. The parser does not tell how long it will be, but where its
        bytes began the line with its size has ended: what is too long is refused before it comes."""
        if self._chunk_bytes is not None:
            end = len(data) - self._chunk_bytes
            before = self._latest + data[max(end - CHUNK_LINE_BYTES, 0) : end]
            _, newline, line = before.rstrip(b"\r\n").rpartition(b"\n")  # of which all must be there
            size = line.partition(b";")[0]
            if newline and CHUNK_SIZE.fullmatch(size) and int(size, 16) > self._limit_bytes:
                raise self._fail(self._body_too_large())

    def _fail(self, error: HttpError) -> httptools.HttpParserError:
        self._refusal = error
        return httptools.HttpParserError(error.message)

    def _headers_too_large(self) -> HttpError:
        limit = f"{self._max_header_bytes} bytes or {MAX_HEADERS} headers"
        return HttpError(431, f"Request headers are larger than {limit}.", code="headers_too_large")

    def _body_too_large(self) -> HttpError:
        return HttpError(413, f"The body is larger than {self._limit_bytes} bytes.", code="body_too_large")

    def on_message_begin(self) -> None:
        self.state = "header"
        self.num_begun += 1
        self._url = b""
        self._headers = []
        self._header_bytes = 0
        self._body = bytearray()
        self._whole_body = b""
        self._limit_bytes = self._max_body_bytes

    def on_url(self, part: bytes) -> None:
        self._kept_bytes = 0
        self._url += part
        if len(self._url) > self._max_header_bytes:
            raise self._fail(self._headers_too_large())

    def on_header(self, name: bytes, value: bytes | None) -> None:
        self._kept_bytes = 0
        value = value or b""
        self._headers.append((name.lower(), value))
        self._header_bytes += len(name) + len(value) + 4
        if self._header_bytes > self._max_header_bytes or len(self._headers) > MAX_HEADERS:
            raise self._fail(self._headers_too_large())

    def on_headers_complete(self) -> None:
        if self._parser.should_upgrade():
            self._ignoring_upgrade = True
            return
        version = self._parser.get_http_version()
        if version not in ("1.1", "1.0"):
            raise self._fail(HttpError(505, f"HTTP/{version} is not served, HTTP/1.1 is.", code="http_version"))
        self.state = "body"
        authorization, key, codings, is_large, num_hosts, body_bytes = b"", b"", b"", False, 0, 0
        for name, value in self._headers:
            if name not in FRAMING_HEADERS:
                continue
            if name == b"content-length":
                body_bytes = int(value)  # the parser has checked that it is a number
                is_large |= body_bytes > STRANGERS_BODY_BYTES
            elif name == b"transfer-encoding":
                codings += b"," + value  # several headers are one list
            elif name == b"authorization":
                authorization = value
            elif name == KEY_HEADER:
                key = value
            elif name == b"expect":
                if value.lower() != b"100-continue":
                    raise self._fail(HttpError(417, "The only expectation served is 100-continue.", param="Expect"))
                self.expects_continue = version == "1.1"  # to an older client the answer would be a response
            elif name == b"host":
                num_hosts += 1
        if num_hosts > 1 or (num_hosts == 0 and version == "1.1"):  # RFC 9112, 3.2
            raise self._fail(HttpError(400, f"One Host header is needed, got {num_hosts}.", code="malformed_http"))
        if codings:
            self._check_transfer_codings(codings, version)
            is_large = True  # perhaps
            if self._body_places is not None:
                self._limit_bytes = self._body_places.chunked_limit_bytes(self.path) or self._max_body_bytes
        if is_large and self._check_caller is not None:
            try:
                self._check_caller(authorization_of(authorization, key))
            except HttpError as error:
                raise self._fail(error) from None
        if body_bytes > STRANGERS_BODY_BYTES:
            self._prepare_for(body_bytes)

    def _prepare_for(self, body_bytes: int) -> None:
        """Takes a place for the large body that comes next."""
        if self._body_places is not None:
            try:
                place = self._body_places.place_for(self.path, body_bytes, self._headers)
            except HttpError as error:
                raise self._fail(error) from None
            if place is not None:
                self._arriving = ArrivingBody(place, self._parser.should_keep_alive())
                self._make_room(self._arriving, 1)
                return
        if body_bytes > self._limit_bytes:
            raise self._fail(self._body_too_large())

    def _make_room(self, arriving: ArrivingBody, num_bytes: int) -> None:
        if not arriving.make_room(num_bytes):
            raise self._fail(no_room_for(arriving))

    def _check_transfer_codings(self, listed: bytes, version: str) -> None:
        if version == "1.0":  # perhaps a proxy that has passed on what it does not know (RFC 9112, 6.1)
            raise self._fail(HttpError(400, "HTTP/1.0 has no Transfer-Encoding.", code="malformed_http"))
        codings = [coding for one in listed.lower().split(b",") if (coding := one.strip(b" \t"))]
        if len(codings) > 1 and codings[-1] == b"chunked":  # the parser refuses other ends
            raise self._fail(HttpError(501, "The only transfer coding served is chunked.", code="not_implemented"))

    def on_chunk_header(self) -> None:
        self._chunk_bytes = 0
        self._is_chunk_new = True

    def on_chunk_complete(self) -> None:
        self._chunk_bytes = None

    def on_body(self, part: bytes) -> None:
        self._kept_bytes = 0
        if self._chunk_bytes is not None:
            self._chunk_bytes += len(part)
        self.expects_continue = False
        if self._arriving is not None:
            self._make_room(self._arriving, len(part))
            self._arriving.put(part)
            return
        if not self._body and not self._whole_body:
            self._whole_body = part
        else:
            if self._whole_body:
                self._body += self._whole_body
                self._whole_body = b""
            self._body += part
        if len(self._body) + len(self._whole_body) > self._limit_bytes:
            raise self._fail(self._body_too_large())

    def on_message_complete(self) -> None:
        self._kept_bytes = 0
        if self._ignoring_upgrade:
            return
        if len(self._arrived) >= MAX_PIPELINED_REQUESTS:
            raise self._fail(HttpError(400, "Too many pipelined requests.", code="too_many_pipelined"))
        self._append_request(self._parser.should_keep_alive())

    def _append_request(self, keep_alive: bool) -> None:
        path, query = self._split_target()
        headers = dict(self._headers)
        if len(headers) < len(self._headers):
            headers = joined(self._headers)
        body = self._whole_body or bytes(self._body)
        arriving, self._arriving = self._arriving, None
        self._arrived.append(
            Request(
                method=self._parser.get_method().decode("ascii"),
                path=path,
                query=query,
                headers=headers,
                body=body,
                keep_alive=keep_alive,
                http10=self._parser.get_http_version() == "1.0",
                large_body=arriving.place if arriving is not None else None,
            )
        )
        self.state = "idle"
        self.expects_continue = False
        self._body = bytearray()
        self._whole_body = b""

    def _split_target(self) -> tuple[str, str]:
        try:
            target = self._url.decode("utf-8")
            if not target.startswith("/"):  # absolute form, as sent to proxies, or "*"
                parts = urlsplit(target)
                target = f"{parts.path or '/'}?{parts.query}"
        except ValueError:
            raise self._fail(HttpError(400, "The request target is not a valid URL.", code="malformed_http")) from None
        path, _, query = target.partition("#")[0].partition("?")
        if "%" in path:
            path = unquote(path, errors="replace")
        return self._below_prefix(path), query

    def _below_prefix(self, path: str) -> str:
        prefix = self._path_prefix
        if prefix and path.startswith(prefix) and path.startswith("/", len(prefix)):
            return path[len(prefix) :]
        return path


def joined(headers: list[tuple[bytes, bytes]]) -> dict[bytes, bytes]:
    """The values of repeated headers are joined with a comma."""
    values: dict[bytes, bytes] = {}
    for name, value in headers:
        values[name] = values[name] + b", " + value if name in values else value
    return values


def no_room_for(body: ArrivingBody) -> HttpError:
    text = f"There is no memory for a body of {body.num_bytes} bytes."
    return HttpError(503, text, code="memory_full", headers=(("retry-after", "1"),))
