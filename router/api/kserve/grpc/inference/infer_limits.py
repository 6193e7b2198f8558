"""The limits of API keys, for tensor requests: how many in a minute, and how many at a time."""

from __future__ import annotations

from slipstream.router.access.access import Access, Permit
from slipstream.router.access.caller import Caller
from slipstream.router.access.usage import UsageCounts
from slipstream.router.api.kserve.grpc.calls.rpc_error import RpcError
from slipstream.router.http.http_error import HttpError


class InferLimits:
    """Without keys there are none."""

    def __init__(self, access: Access) -> None:
        self._access = access

    def enter(self, caller: Caller, model: str) -> Permit | None:
        """Admits a request, which is then to be settled. Raises RpcError if its key does not allow the model, or if it
        exceeds a limit."""
        if caller.key is None:
            return None
        try:
            caller.check(model, caller.key.max_priority)
            return self._access.admit(caller, model, num_tokens=0, num_sequences=1)[0]
        except HttpError as error:
            raise RpcError.of_access(error) from None

    def settle(self, permit: Permit | None, *, has_failed: bool) -> None:
        if permit is not None:
            self._access.settle(permit, UsageCounts(num_requests=1, num_errors=int(has_failed)))
