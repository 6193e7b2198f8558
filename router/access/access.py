"""Access control: who a caller is (`key_ring`), what they may use, and what they have used (`usage`)."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path

from slipstream.router.access.api_key import ApiKey
from slipstream.router.access.caller import Caller
from slipstream.router.access.key_ring import KeyRing
from slipstream.router.access.limits import KeyLimits, LimitName, Quota, RateLimited, check_all, headers_of
from slipstream.router.access.usage import Account, UsageCounts, UsageTotals
from slipstream.router.access.usage_saver import UsageSaver
from slipstream.router.config.access_config import AccessConfig
from slipstream.router.http.http_error import RequestError
from slipstream.router.protocol.generation import Figure, GenerationError


@dataclass(frozen=True, slots=True)
class Permit:
    """What an admitted request has reserved, until `Access.settle`."""

    caller: Caller
    model: str
    num_tokens: int
    num_sequences: int
    quotas: tuple[Quota, ...] = ()  # that it was taken from


class Access:
    """Without a key file all callers may do everything, and only the usage is counted. Everything runs on one event
    loop; files are read and written in `executor`."""

    def __init__(self, config: AccessConfig | None = None, executor: Executor | None = None) -> None:
        config = config or AccessConfig()
        keys_path = Path(config.keys_file) if config.keys_file is not None else None
        self.keys = KeyRing(keys_path, executor, self._follow_keys)
        self.usage = UsageTotals()
        self._usage_saver: UsageSaver | None = None
        if config.usage_file is not None:
            self._usage_saver = UsageSaver(self.usage, Path(config.usage_file), executor)
        self._limits: dict[str, KeyLimits] = {}  # by name of the key
        self.num_limited: Counter[tuple[str, LimitName]] = Counter()  # by tenant and limit

    def open(self) -> None:
        """Reads the files, and watches the key file from now on. Raises ValueError if the key file is broken, OSError
        if the usage file cannot be used."""
        self.keys.open()
        if self._usage_saver is not None:
            self._usage_saver.open()
        self.keys.watch()

    async def close(self) -> None:
        """Saves the usage."""
        await self.keys.close()
        if self._usage_saver is not None:
            await self._usage_saver.close()

    def admit(
        self, caller: Caller, model: str, num_tokens: int, num_sequences: int, is_resumed: bool = False
    ) -> tuple[Permit, str]:
        """Admits a request within the limits of its key. Returns a permit, which must be settled, and header lines for
        the response. Raises HttpError 429 if it exceeds a limit, 400 if it could never be admitted; but neither for one
        that `is_resumed`, because the previous router has admitted it."""
        if caller.key is None:
            return Permit(caller, model, num_tokens, num_sequences), ""
        now = time.monotonic()
        quotas = self._limits_of(caller.key, now).of(model)
        check_number(num_sequences, quotas)
        if not is_resumed:
            try:
                check_all(quotas, num_tokens, num_sequences, now)
            except RateLimited as limited:
                self.num_limited[caller.key.tenant, limited.limit] += 1
                raise self._limited(limited, headers_of(quotas, now)) from None
        for quota in quotas:
            quota.take(num_tokens, num_sequences, now)
        return Permit(caller, model, num_tokens, num_sequences, quotas), headers_of(quotas, now)

    async def enter(
        self, caller: Caller, model: str, num_tokens: int, num_sequences: int, is_resumed: bool = False
    ) -> tuple[Permit, str]:
        """As `admit`, but awaitable, because in a front process the limits are counted elsewhere."""
        return self.admit(caller, model, num_tokens, num_sequences, is_resumed)

    def settle(self, permit: Permit, used: UsageCounts) -> None:
        """A request has ended: counts what it used, and gives back what it reserved beyond that."""
        account = Account(permit.caller.name, permit.caller.tenant(""), permit.model)
        if self._usage_saver is not None:
            self._usage_saver.count(account, used)
        else:
            self.usage.add(account, used)
        for quota in permit.quotas:
            quota.settle(permit.num_tokens, used.num_tokens, permit.num_sequences, time.monotonic())

    def usage_of(self, caller: Caller) -> Iterator[tuple[Account, UsageCounts]]:
        """The usage of the caller's key; for an administrator, of all keys."""
        return ((account, counts) for account, counts in self.usage if caller.is_admin or account.key == caller.name)

    def _follow_keys(self, keys: Sequence[ApiKey]) -> None:
        """The keys have changed, or were read for the first time."""
        now = time.monotonic()
        by_name = {key.name: key for key in keys}
        # Keep the limits of removed keys that still have requests running, which will settle with them.
        self._limits = {name: limits for name, limits in self._limits.items() if name in by_name or limits.num_running}
        for name, limits in self._limits.items():
            if name in by_name:
                limits.follow(by_name[name], now)

    def _limits_of(self, key: ApiKey, now: float) -> KeyLimits:
        limits = self._limits.get(key.name)
        if limits is None:
            limits = self._limits[key.name] = KeyLimits()
            limits.follow(key, now)
        return limits

    @staticmethod
    def _limited(limited: RateLimited, header_lines: str) -> RequestError:
        headers = [
            ("retry-after", str(math.ceil(limited.retry_after_s))),
            ("retry-after-ms", str(math.ceil(limited.retry_after_s * 1e3))),
        ]
        for line in header_lines.splitlines():
            name, _, value = line.partition(": ")
            headers.append((name, value))
        message = f"Rate limit reached ({limited.limit}): {limited}."
        error = GenerationError("limit_exceeded", str(limited), limited.retry_after_s, limited.figures)
        return RequestError(429, message, error, kind=limited.limit, code="rate_limit_exceeded", headers=tuple(headers))


def check_number(num_sequences: int, quotas: Sequence[Quota]) -> None:
    """Raises HttpError 400 if a request asks for more sequences than may ever run at a time."""
    limits = [quota.max_concurrent for quota in quotas if quota.max_concurrent is not None]
    if limits and num_sequences > min(limits):
        most = min(limits)
        message = f"'n' asks for {num_sequences} choices in all; this API key may have {most} at a time."
        figures = (Figure("max_concurrent", most), Figure("num_sequences", num_sequences))
        error = GenerationError("invalid_request", message.removesuffix("."), figures=figures)
        raise RequestError(400, message, error, kind="invalid_request_error", param="n", code="invalid_value")
