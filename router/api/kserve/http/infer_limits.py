"""The limits of API keys, for tensor requests over HTTP: how many in a minute, and how many at a time."""

from __future__ import annotations

from types import TracebackType

from slipstream.router.access.access import Access, Permit
from slipstream.router.access.usage import UsageCounts
from slipstream.router.api.exchange_context import ApiExchange


class AdmittedRequest:
    """While it is entered, the request counts as running; one that leaves with an exception has failed."""

    __slots__ = ("_access", "_permit")

    def __init__(self, access: Access, permit: Permit | None) -> None:
        self._access = access
        self._permit = permit

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._permit is not None:
            self._access.settle(self._permit, UsageCounts(num_requests=1, num_errors=int(kind is not None)))


class InferLimits:
    """Without keys there are none."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self._unlimited = AdmittedRequest(access, None)

    def admit(self, exchange: ApiExchange, model: str) -> AdmittedRequest:
        """To be entered at once. Raises HttpError: 403 if the key does not allow the model, 429 beyond a limit."""
        caller = exchange.context.caller
        if caller.key is None:
            return self._unlimited
        caller.check(model, caller.key.max_priority)
        permit, lines = self._access.admit(caller, model, num_tokens=0, num_sequences=1)
        exchange.header_lines += lines
        return AdmittedRequest(self._access, permit)
