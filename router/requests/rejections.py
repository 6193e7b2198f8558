"""Rejected requests, kept for a while so that they can be explained, too.

In a flood they are many, and refusing one must stay cheap. So they have a ring of their own, which leaves the records
of served requests alone, and only what their records can be made from on demand is kept.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterator
from typing import NamedTuple

from slipstream.router.protocol.generation import GenerateRequest, GenerationError, Slo


class RejectedRequest(NamedTuple):
    """A request that was never let in, and why. `at_s` is in seconds of the router's clock. `num_prompt_tokens` is 0 if
    the prompt had not been tokenised yet. `model` is the name of the model, after aliases have been resolved."""

    at_s: float
    request_id: str
    names: tuple[str, ...]
    tenant: str
    priority: int
    num_prompt_tokens: int
    max_output_tokens: int
    expected_output_tokens: int | None
    slo: Slo
    session: str
    timeout_s: float | None
    trace_id: str
    version: str
    error: GenerationError
    model: str = ""

    @staticmethod
    def of(request: GenerateRequest, error: GenerationError, now: float) -> RejectedRequest:
        """If one choice of several is refused, so is the whole answer, whose names lead to the refusal then."""
        prompt, names = request.prompt_ids, request.names
        if request.choice:
            suffix = f"#{request.choice}"
            names = (*names, *(name.removesuffix(suffix) for name in (request.request_id, *names)))
        return RejectedRequest(
            now,
            request.request_id,
            names,
            request.tenant,
            request.priority,
            len(prompt) // 4 if isinstance(prompt, bytes) else len(prompt),
            request.sampling.max_tokens,
            request.expected_output_tokens,
            request.slo,
            request.session,
            request.timeout_s,
            request.trace_id,
            request.version,
            error,
            request.model,
        )


class Rejections:
    """The latest `capacity`, by request id or name. A named tenant may fill half of them, as of the queue, so that the
    flood of one does not displace the records of the others."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._requests: OrderedDict[str, RejectedRequest] = OrderedDict()
        self._by_name: dict[str, RejectedRequest] = {}
        self._ids_of: dict[str, deque[str]] = {}  # by tenant, oldest first

    def __len__(self) -> int:
        return len(self._requests)

    def add(self, refused: RejectedRequest) -> None:
        earlier = self._requests.get(refused.request_id)
        if earlier is not None:
            self._drop(earlier)
        own = self._ids_of.get(refused.tenant)
        if own is not None and refused.tenant and len(own) >= max(self._capacity // 2, 1):
            self._drop(self._requests[own[0]])
        elif len(self._requests) == self._capacity:
            self._drop(next(iter(self._requests.values())))
        self._requests[refused.request_id] = refused
        self._ids_of.setdefault(refused.tenant, deque()).append(refused.request_id)
        for name in refused.names:
            self._by_name[name] = refused

    def get(self, request_id: str) -> RejectedRequest | None:
        """The one with this request id or, if there is none, the latest with this name."""
        return self._requests.get(request_id) or self._by_name.get(request_id)

    def latest(self) -> Iterator[RejectedRequest]:
        """Newest first."""
        return reversed(self._requests.values())

    def _drop(self, refused: RejectedRequest) -> None:
        del self._requests[refused.request_id]
        own = self._ids_of[refused.tenant]
        own.remove(refused.request_id)  # nearly always the first
        if not own:
            del self._ids_of[refused.tenant]
        for name in refused.names:
            if self._by_name.get(name) is refused:
                del self._by_name[name]
