"""A client for the admin API of a cluster, on this machine or elsewhere."""

from __future__ import annotations

import http.client
import json
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from slipstream.cluster.admin_api.client.admin_port import DEFAULT, CallOptions
from slipstream.cluster.state.cluster_state import ClusterState
from slipstream.cluster.state.cluster_status import shown_key
from slipstream.cluster.terminal.command_error import CommandError
from slipstream.router.tls.client_tls import ClientTlsConfig, VerifiedConnection
from slipstream.router.tls.tls_files import TlsFileError

TOKEN_VARIABLE = "SLIPSTREAM_OPERATOR_TOKEN"


class UnreachableError(CommandError):
    """There is no answer at the URL."""


@dataclass(frozen=True, slots=True)
class AdminClient:
    """One driver's API (`AdminPort`). Nothing is known of those before and after it, so no call waits for them.
    `reason` is sent with every change. At an https URL the certificate is verified as `tls` says."""

    url: str
    token: str
    reason: str = ""
    tls: ClientTlsConfig = field(default_factory=ClientTlsConfig)

    @property
    def restarts(self) -> int:
        return 0

    def get(self, path: str) -> dict[str, Any]:
        return self._ask("GET", path, None)

    def post(self, path: str, body: dict[str, Any] | None = None, options: CallOptions = DEFAULT) -> dict[str, Any]:
        if self.reason:
            path += f"{'&' if '?' in path else '?'}reason={urllib.parse.quote(self.reason, errors='replace')}"
        return self._ask("POST", path, body, options.timeout_s)

    def _ask(
        self, method: str, path: str, body: dict[str, Any] | None, timeout_s: float = DEFAULT.timeout_s
    ) -> dict[str, Any]:
        """The answer to a call. Raises CommandError, with one sentence, if there is none; UnreachableError, if no
        server is there."""
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json", **shown_key(self.token)}
        try:
            question = urllib.request.Request(f"{self.url}{path}", data, headers, method=method)
            with _opener(self.tls).open(question, timeout=timeout_s) as answer:
                content: dict[str, Any] = json.load(answer)
                return content
        except urllib.error.HTTPError as error:
            raise CommandError(_refusal(error, self.url)) from error
        except (OSError, http.client.HTTPException) as error:
            reason = error.reason if isinstance(error, urllib.error.URLError) else error
            raise UnreachableError(
                f"the admin API at {self.url} cannot be reached: {reason}{self._hint(error)}"
            ) from error
        except TlsFileError as error:
            raise CommandError(f"{self.url} cannot be asked: {error}") from error
        except ValueError as error:  # not a URL, or an answer that is not JSON
            raise CommandError(f"{self.url} is not the admin API of a Slipstream cluster: {error}") from error

    def _hint(self, error: Exception) -> str:
        """A server closes the connection of a caller without TLS, or without the certificate that it asks for, and says
        nothing."""
        is_closed = isinstance(error, ConnectionError) and not isinstance(error, ConnectionRefusedError)
        if not is_closed:
            return ""
        if not self.url.startswith("https:"):
            return " (perhaps it speaks TLS: https://)"
        return (
            "" if self.tls.cert_file is not None else " (perhaps it asks for a certificate: --cert-file and --key-file)"
        )


class VerifiedHandler(urllib.request.HTTPSHandler):
    """Opens https URLs as `tls` says."""

    def __init__(self, tls: ClientTlsConfig) -> None:
        super().__init__()
        self._tls = tls

    def https_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(partial(VerifiedConnection, tls=self._tls), req)


def _opener(tls: ClientTlsConfig) -> urllib.request.OpenerDirector:
    """Without a proxy, because one that the environment names cannot reach addresses of this machine."""
    return urllib.request.build_opener(urllib.request.ProxyHandler({}), VerifiedHandler(tls))


def client_of(state: ClusterState, token: str | None = None, reason: str = "") -> AdminClient:
    """A client for the cluster with this state file. Raises CommandError if it serves no admin API."""
    if not state.operator_url:
        raise CommandError(f"{state.name} serves no admin API (admin_api.port is null in {state.config})")
    return AdminClient(state.operator_url, token or state.operator_token, reason, state.operator_tls)


def _refusal(error: urllib.error.HTTPError, where: str) -> str:
    try:
        message = str(json.load(error)["error"]["message"])
    except (ValueError, KeyError, TypeError, OSError):
        return f"{where} answers with status {error.code} and is perhaps no admin API of a Slipstream cluster"
    return f"{message} (--token, or {TOKEN_VARIABLE} in the environment)" if error.code == 401 else message
