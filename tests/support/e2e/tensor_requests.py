"""Requests to the tensor models of a cluster over HTTP."""

from __future__ import annotations

import contextlib
import http.client
import threading
import time
from typing import Any
from urllib.parse import urlsplit

import orjson

from tests.support.e2e.serving_cluster import ServingCluster

HEALS_S = 60.0
STARTS_S = 120.0  # workers of a language model, on a machine that does other things, too
BODY = orjson.dumps(
    {
        "inputs": [
            {"name": "INPUT0", "datatype": "FP32", "shape": [2], "data": [1, 2]},
            {"name": "INPUT1", "datatype": "FP32", "shape": [2], "data": [3, 5]},
        ]
    }
)


class Asking:
    """Sends one request after the other on a connection that stays open, in a thread, until `stop`."""

    def __init__(self, serving: ServingCluster, model: str = "add_sub") -> None:
        self._path = f"/v2/models/{model}/infer"
        at = urlsplit(serving.base_url)
        assert at.hostname is not None
        self._connection = http.client.HTTPConnection(at.hostname, at.port, timeout=HEALS_S)
        self._is_to_end = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.answers: list[tuple[int, Any]] = []
        self.error: Exception | None = None

    def __enter__(self) -> Asking:
        self._thread.start()
        return self

    def __exit__(self, *args: object) -> None:
        self._is_to_end.set()
        self._thread.join()
        self.close()

    def close(self) -> None:
        self._connection.close()

    def _run(self) -> None:
        try:
            while not self._is_to_end.is_set():
                self.answers.append(self.ask())
        except (OSError, http.client.HTTPException) as error:
            self.error = error

    def ask(self, **headers: str) -> tuple[int, Any]:
        self._connection.request("POST", self._path, BODY, headers)
        answer = self._connection.getresponse()
        return answer.status, orjson.loads(answer.read())

    def post(self, path: str) -> Any:
        """What is answered to a POST without a body."""
        self._connection.request("POST", path)
        answer = self._connection.getresponse()
        body = answer.read()
        assert answer.status == 200, body
        return orjson.loads(body or b"null")

    def wait_for_more(self, count: int) -> None:
        wanted, until_s = len(self.answers) + count, time.monotonic() + HEALS_S
        while len(self.answers) < wanted and self._thread.is_alive() and time.monotonic() < until_s:
            time.sleep(0.01)


def asked(serving: ServingCluster, path: str, body: Any = None) -> tuple[int, Any]:
    """The answer to a POST."""
    at = urlsplit(serving.base_url)
    assert at.hostname is not None
    with contextlib.closing(http.client.HTTPConnection(at.hostname, at.port, timeout=STARTS_S)) as connection:
        connection.request("POST", path, orjson.dumps(body or {}), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        return answer.status, orjson.loads(answer.read() or b"null")
