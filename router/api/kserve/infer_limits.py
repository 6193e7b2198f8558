"""The limits of API keys, for tensor requests: how many in a minute, and how many at a time."""

from __future__ import annotations

from slipstream.router.access.access import Access, Permit
from slipstream.router.access.caller import Caller
from slipstream.router.access.usage import UsageCounts
from slipstream.router.tensors.infer_request import RequestTokens


class InferLimits:
    """Without keys there are none."""

    def __init__(self, access: Access) -> None:
        self._access = access

    def admit(self, caller: Caller, model: str) -> tuple[Permit | None, str]:
        """What is to be settled when the request ends, and header lines for its response. Raises HttpError: 403 if the
        key does not allow the model, 429 beyond a limit."""
        if caller.key is None:
            return None, ""
        caller.check(model, caller.key.max_priority)
        return self._access.admit(caller, model, num_tokens=0, num_sequences=1)

    def settle(self, permit: Permit | None, tokens: RequestTokens, *, has_failed: bool) -> None:
        """`tokens` were used by language models; they count for the limit in a minute once they are known."""
        if permit is not None:
            used = UsageCounts(1, int(has_failed), tokens.num_prompt, tokens.num_cached, tokens.num_output)
            self._access.settle(permit, used)
