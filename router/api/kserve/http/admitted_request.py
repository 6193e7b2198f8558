"""A tensor request over HTTP within the limits of its key."""

from __future__ import annotations

from types import TracebackType

from slipstream.router.access.access import Permit
from slipstream.router.api.exchange_context import ApiExchange
from slipstream.router.api.kserve.infer_limits import InferLimits
from slipstream.router.tensors.infer_request import RequestTokens


class AdmittedRequest:
    """While it is entered, the request counts as running; one that leaves with an exception has failed. To enter it
    raises HttpError if the key does not allow the request. `tokens` are what it uses of language models."""

    __slots__ = ("_exchange", "_limits", "_model", "_permit", "tokens")

    def __init__(self, limits: InferLimits, exchange: ApiExchange, model: str) -> None:
        self._limits = limits
        self._exchange = exchange
        self._model = model
        self._permit: Permit | None = None
        self.tokens = RequestTokens()

    def __enter__(self) -> AdmittedRequest:
        exchange = self._exchange
        self._permit, lines = self._limits.admit(exchange.context.caller, self._model)
        if lines:
            exchange.header_lines += lines
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._limits.settle(self._permit, self.tokens, has_failed=kind is not None)
