"""The calls of the Files and Batch API that `slipstream batch` makes."""

from __future__ import annotations

import http.client
import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from slipstream.cluster.state.cluster_status import KEY_VARIABLE, direct_opener, shown_key
from slipstream.cluster.terminal.command_error import CommandError

TIMEOUT_S = 60.0
PATIENCE_S = 300.0  # for a router that is started again
PAUSE_S = 1.0
BOUNDARY = "slipstream-batch-c2f0a9b1d3e4"  # a line of JSON cannot begin with it
COPY_BYTES = 1 << 20


class NotThereError(CommandError):
    """The router has no such batch or file."""


class BatchClient:
    """Raises CommandError with one sentence if a call fails. A router that cannot be reached, or is not ready, is asked
    again for a while; `waits` is called with the reason."""

    def __init__(self, base: str, key: str | None, waits: Callable[[str], None] = lambda _: None) -> None:
        parts = urlsplit(base)
        self._base = base
        self._where = parts.netloc or base
        self._headers = shown_key(key)
        self._opener = direct_opener(is_here=parts.hostname in ("127.0.0.1", "::1", "localhost"))
        self._waits = waits

    def upload(self, name: str, lines: Iterable[bytes]) -> str:
        """Returns the id of the file."""
        head = f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n--{BOUNDARY}\r\n'
        head += f'Content-Disposition: form-data; name="file"; filename="{name}"\r\n\r\n'
        body = b"".join([head.encode(), *lines, f"\r\n--{BOUNDARY}--\r\n".encode()])
        form = {"Content-Type": f"multipart/form-data; boundary={BOUNDARY}"}
        return str(self._json("POST", "/v1/files", body, form)["id"])

    def create(self, file_id: str, endpoint: str, window: str) -> str:
        """Returns the id of the batch."""
        body = {"input_file_id": file_id, "endpoint": endpoint, "completion_window": window}
        return str(self._json("POST", "/v1/batches", json.dumps(body).encode())["id"])

    def batch(self, batch_id: str) -> dict[str, Any]:
        return self._json("GET", f"/v1/batches/{batch_id}")

    def cancel(self, batch_id: str) -> dict[str, Any]:
        return self._json("POST", f"/v1/batches/{batch_id}/cancel", b"")

    def delete_file(self, file_id: str) -> None:
        self._json("DELETE", f"/v1/files/{file_id}")

    def download(self, file_id: str, path: Path) -> None:
        """Writes the content of a file, anew after each failure."""

        def copy(answer: http.client.HTTPResponse) -> None:
            with path.open("wb") as file:
                while part := answer.read(COPY_BYTES):
                    file.write(part)

        self._call("GET", f"/v1/files/{file_id}/content", None, {}, copy)

    def _json(
        self, method: str, path: str, body: bytes | None = None, headers: dict[str, str] | None = None
    ) -> dict[str, Any]:
        found: dict[str, Any] = {}
        plain = {"Content-Type": "application/json"} if headers is None else headers
        self._call(method, path, body, plain, lambda answer: found.update(json.load(answer)))
        return found

    def _call(
        self,
        method: str,
        path: str,
        body: bytes | None,
        headers: dict[str, str],
        read: Callable[[http.client.HTTPResponse], None],
    ) -> None:
        begin_s = time.monotonic()
        while True:
            request = urllib.request.Request(
                f"{self._base}{path}", data=body, headers={**headers, **self._headers}, method=method
            )
            try:
                with self._opener.open(request, timeout=TIMEOUT_S) as answer:
                    read(answer)
                return
            except urllib.error.HTTPError as error:
                with error:
                    failure = refusal(error, self._where)
                if error.code not in (429, 502, 503):
                    raise failure from error
            except (OSError, http.client.HTTPException, ValueError) as error:
                reason = error.reason if isinstance(error, urllib.error.URLError) else error
                failure = CommandError(f"the router at {self._where} cannot be reached: {reason}")
            if time.monotonic() - begin_s > PATIENCE_S:
                raise failure
            self._waits(str(failure))
            time.sleep(PAUSE_S)


def refusal(error: urllib.error.HTTPError, where: str) -> CommandError:
    """The router's error as one sentence, with what can be done about it."""
    try:
        reply = json.load(error)["error"]
        message, code = str(reply["message"]), reply["code"]
    except (ValueError, KeyError, TypeError, OSError):
        return CommandError(f"{where} answers with status {error.code} and is perhaps no Slipstream router")
    if error.code in (401, 403):
        return CommandError(f"{message} (--key, or {KEY_VARIABLE} in the environment)")
    if code in ("batch_not_found", "file_not_found"):
        return NotThereError(message)
    return CommandError(message)
