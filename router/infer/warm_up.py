"""Warms an instance up before it serves."""

from __future__ import annotations

from collections.abc import Sequence

from slipstream.router.instances.instance_link import InstanceLink
from slipstream.router.instances.messages import Executed, ExecuteRequest, InstanceResponse
from slipstream.router.tensors.infer_request import InferRequest


class WarmUp:
    """Runs executions one after the other, before the instance serves. `error` is what went wrong first."""

    def __init__(self, link: InstanceLink, executions: Sequence[Sequence[InferRequest]]) -> None:
        self._link = link
        self._left = list(reversed(executions))
        self._open: set[int] = set()
        self._numbers: list[int] = []  # of the execution
        self._is_executing = False
        self._last_n = 0
        self.error = ""
        self._next()

    @property
    def is_over(self) -> bool:
        return not self._left and not self._is_executing and not self._open

    def executed(self, result: Executed) -> None:
        self._is_executing = False
        for n, response in zip(self._numbers, result.responses, strict=False):
            if response is not None:
                self._take(response)
                self._open.discard(n)
        if result.error is not None:
            self._fail(result.error)
            self._open.clear()
        self._next()

    def responded(self, n: int, response: InstanceResponse | None, *, is_final: bool) -> None:
        if response is not None:
            self._take(response)
        if is_final:
            self._open.discard(n)
        self._next()

    def _next(self) -> None:
        if self._is_executing or self._open or not self._left:
            return
        requests = self._left.pop()
        self._numbers = list(range(self._last_n + 1, self._last_n + 1 + len(requests)))
        self._last_n += len(requests)
        self._open.update(self._numbers)
        self._is_executing = True
        numbered = zip(self._numbers, requests, strict=True)
        self._link.execute(self._last_n, [ExecuteRequest(n, request) for n, request in numbered])

    def _take(self, response: InstanceResponse) -> None:
        if response.error is not None:
            self._fail(response.error.message)
        if response.release is not None:
            response.release()

    def _fail(self, error: str) -> None:
        self.error = self.error or error
        self._left.clear()
