"""Calls of the admin API from the page: `/ui/admin/v1/...` is forwarded to it, with the caller's token.

The page may ask only the server that it came from, and the admin API is another one. Nothing is added to a call: the
admin API checks its token and its body. Only the address of the admin API is ever asked. The token is taken from the
Authorization header, which no other site can make a browser send.
"""

from __future__ import annotations

import asyncio
import http.client
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from urllib.parse import quote, urlsplit

from slipstream.router.api.exchange_context import ApiExchange, ApiRoutes
from slipstream.router.api.ui.token_trials import TokenTrials
from slipstream.router.http.exchange import JSON
from slipstream.router.http.http_error import HttpError
from slipstream.router.http.reader import Request
from slipstream.router.tls.client_tls import ClientTlsConfig, VerifiedConnection
from slipstream.router.tls.tls_files import TlsFileError

PREFIX = "/ui/admin/"
FORWARDED = "v1/"  # what of the admin API may be called
METHODS = ("GET", "POST")  # those that it has
MAX_BODY_BYTES = 64 * 1024  # as the admin API itself
MAX_ANSWER_BYTES = 16 << 20
TIMEOUT_S = 300.0  # a model is added when it serves
MAX_AT_ONCE = 8


@dataclass(frozen=True, slots=True)
class ForwardedAnswer:
    status: int
    content_type: str
    body: bytes


class AdminCalls:
    """`admin_url` is that of the admin API. Over https its certificate is verified as `tls` says."""

    def __init__(self, admin_url: str, tls: ClientTlsConfig) -> None:
        at = urlsplit(admin_url)
        self._host, self._port = at.hostname or "", at.port
        self._tls = tls if at.scheme == "https" else None
        self._trials = TokenTrials()
        self._num_running = 0
        # Threads are begun by the first calls.
        self._threads = ThreadPoolExecutor(MAX_AT_ONCE, thread_name_prefix="admin-calls")

    def add_to(self, routes: ApiRoutes) -> None:
        """Register the calls."""
        for method in METHODS:
            routes.add_item(method, PREFIX, "", self.call, is_described=False)

    async def call(self, request: Request, exchange: ApiExchange, path: str) -> None:
        """Raises HttpError 404 for what is not to be called, 401, 413, 429, and 502 where the admin API does not
        answer."""
        if not path.startswith(FORWARDED) or not {".", ".."}.isdisjoint(path.split("/")):
            raise HttpError(404, f"The admin API has no {path[:64]!r}.", code="not_found")
        if len(request.body) > MAX_BODY_BYTES:
            raise HttpError(413, f"A call of the admin API has at most {MAX_BODY_BYTES} bytes.", code="too_large")
        token = request.headers.get(b"authorization", b"")
        if not token:
            raise HttpError(401, "The administrator's token is missing.", code="unauthorized")
        exchange.refuse_if_repeated()
        self._refuse_if_too_many(exchange.client_address, token)
        self._num_running += 1
        try:
            answer = await asyncio.get_running_loop().run_in_executor(self._threads, self._ask, request, path)
        except (OSError, http.client.HTTPException, TlsFileError) as error:
            reason = f"The admin API at {self._host}:{self._port} does not answer: {error}."
            raise HttpError(502, reason, kind="server_error", code="admin_api_unreachable") from error
        finally:
            self._num_running -= 1
        if answer.status < 300 or answer.status == 401:  # a path that it does not have is a 404 for any token
            is_right = answer.status != 401
            self._trials.note(exchange.client_address, token, time.monotonic(), is_right=is_right)
        exchange.respond(answer.status, answer.body, answer.content_type, (("cache-control", "no-store"),))

    def _refuse_if_too_many(self, address: str, token: bytes) -> None:
        """Raises HttpError 429."""
        wait_s = self._trials.wait_s(address, token, time.monotonic())
        if wait_s > 0:
            headers = (("retry-after", str(int(wait_s) + 1)),)
            raise HttpError(
                429, "Too many wrong tokens were tried from this address.", code="too_many_tokens", headers=headers
            )
        if self._num_running >= MAX_AT_ONCE:
            raise HttpError(
                429,
                f"{MAX_AT_ONCE} calls of the admin API are running.",
                code="too_many_calls",
                headers=(("retry-after", "1"),),
            )

    def _connection(self) -> http.client.HTTPConnection:
        """Raises TlsFileError."""
        if self._tls is None:
            return http.client.HTTPConnection(self._host, self._port, timeout=TIMEOUT_S)
        return VerifiedConnection(self._host, self._port, tls=self._tls, timeout=TIMEOUT_S)

    def _ask(self, request: Request, path: str) -> ForwardedAnswer:
        connection = self._connection()
        headers = {"content-type": JSON, "authorization": request.headers[b"authorization"].decode("latin-1")}
        method = "GET" if request.method == "HEAD" else request.method
        target = "/" + quote(path) + (f"?{request.query}" if request.query else "")
        try:
            connection.request(method, target, request.body or None, headers)
            response = connection.getresponse()
            body = response.read(MAX_ANSWER_BYTES + 1)
            if len(body) > MAX_ANSWER_BYTES:
                raise http.client.HTTPException(f"its answer has more than {MAX_ANSWER_BYTES} bytes")
            return ForwardedAnswer(response.status, response.getheader("content-type") or JSON, body)
        finally:
            connection.close()
