"""Lets an instance execute only when the resources are free that it shares with others (`--rate-limit`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from slipstream.router.batching.resources.rate_limiter import RateLimiter
from slipstream.router.tensors.model_spec import InstanceGroup


class ExecutionGate:
    """One for all models. An instance is named by a key that is unique among them all. `call_soon` runs what instances
    want to be called with when they may try again."""

    def __init__(self, limiter: RateLimiter, call_soon: Callable[[Callable[[], None]], object]) -> None:
        self._limiter = limiter
        self._call_soon = call_soon
        self._retries: dict[str, Callable[[], None]] = {}

    def add(self, key: str, group: InstanceGroup, device: int, retry: Callable[[], None]) -> None:
        """Raises InferError if there will never be enough of a resource for it. Idempotent."""
        if key not in self._retries:
            self._limiter.add(key, group, device)
            self._retries[key] = retry

    def remove(self, key: str) -> None:
        """The instance is gone. Idempotent."""
        if self._retries.pop(key, None) is not None:
            self._try_again(self._limiter.remove(key))

    def acquire(self, key: str) -> bool:
        return self._limiter.acquire(key)

    def release(self, key: str, *, has_executed: bool = True) -> None:
        if key in self._retries:
            self._try_again(self._limiter.release(key, has_executed=has_executed))

    def withdraw(self, key: str) -> None:
        """It has nothing to execute."""
        if key in self._retries:
            self._try_again(self._limiter.withdraw(key))

    def leave(self, key: str) -> None:
        """It executes nothing any more: what it has taken and its place in the line are free."""
        self.withdraw(key)
        self.release(key, has_executed=False)

    def _try_again(self, keys: Sequence[str]) -> None:
        for retry in dict.fromkeys(self._retries[key] for key in keys):
            self._call_soon(retry)
