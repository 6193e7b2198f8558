"""Rate and concurrency limits of API keys. Sans-IO; time is an argument."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from slipstream.router.access.api_key import ApiKey, Rates
from slipstream.router.protocol.generation import Figure

MINUTE_S = 60.0
BUSY_RETRY_S = 1.0  # a guess: it is unknown when one of the running sequences will end

LimitName = Literal["requests", "tokens", "concurrent"]


class RateLimited(Exception):  # noqa: N818 - reads as the sentence it carries
    """The request exceeds a limit. It would be admitted after `retry_after_s` if nothing else came in between."""

    def __init__(self, limit: LimitName, message: str, retry_after_s: float, *figures: Figure) -> None:
        super().__init__(message)
        self.limit = limit
        self.retry_after_s = retry_after_s
        self.figures = figures


class TokenBucket:
    """Holds one minute's worth at most, and is refilled continuously. If a request uses more than it reserved, the
    level can become negative; that debt is paid off before anything else is admitted."""

    __slots__ = ("_level", "_updated_s", "per_minute")

    def __init__(self, per_minute: float, now: float) -> None:
        self.per_minute = per_minute
        self._level = per_minute
        self._updated_s = now

    def set_rate(self, per_minute: float, now: float) -> None:
        """Changes the rate from now on; what has been used stays used."""
        used = self.per_minute - self.level(now)
        self.per_minute = per_minute
        self._level = per_minute - used

    def level(self, now: float) -> float:
        """How much could be taken now; negative while there is a debt."""
        elapsed_s = max(now - self._updated_s, 0.0)
        self._level = min(self._level + elapsed_s * self.per_minute / MINUTE_S, self.per_minute)
        self._updated_s = now
        return self._level

    def wait_s(self, amount: float, now: float) -> float:
        """Seconds until so much can be taken. An amount of more than a minute's worth needs a full bucket."""
        missing = min(amount, self.per_minute) - self.level(now)
        return max(missing, 0.0) * MINUTE_S / self.per_minute

    def take(self, amount: float, now: float) -> None:
        """Takes an amount, or gives it back if it is negative."""
        self._level = min(self.level(now) - amount, self.per_minute)

    def reset_s(self, now: float) -> float:
        """Seconds until the bucket is full again."""
        return (self.per_minute - self.level(now)) * MINUTE_S / self.per_minute


@dataclass(slots=True)
class Quota:
    """How much has been used up of one set of limits: those of a key, or those that it has for one model, which `scope`
    then names in the words that follow "this key"."""

    scope: str = ""
    max_concurrent: int | None = None
    requests: TokenBucket | None = None
    tokens: TokenBucket | None = None
    num_running: int = 0

    def follow(self, rates: Rates, now: float) -> None:
        """Applies changed limits; what has been used stays used."""
        self.max_concurrent = rates.max_concurrent
        self.requests = _at_rate(self.requests, rates.requests_per_minute, now)
        self.tokens = _at_rate(self.tokens, rates.tokens_per_minute, now)

    def check(self, num_tokens: int, num_sequences: int, now: float) -> None:
        """Raises RateLimited if one request with so many tokens and sequences is too much."""
        most = self.max_concurrent
        if most is not None and self.num_running + num_sequences > most:
            running = f"{self.num_running} of {most} sequences of this key{self.scope} are running or waiting"
            raise RateLimited(
                "concurrent",
                f"{running}, and this request asks for {num_sequences}",
                BUSY_RETRY_S,
                Figure("num_running", self.num_running),
                Figure("max_concurrent", most),
                Figure("num_sequences", num_sequences),
            )
        if self.requests is not None:
            wait_s = self.requests.wait_s(1, now)
            if wait_s > 0:
                raise RateLimited(
                    "requests",
                    f"this key{self.scope} may send {self.requests.per_minute:g} requests a minute",
                    wait_s,
                    Figure("requests_per_minute", self.requests.per_minute),
                    Figure("requests_left", self.requests.level(now)),
                )
        if self.tokens is not None:
            wait_s = self.tokens.wait_s(num_tokens, now)
            if wait_s > 0:
                used = f"this key{self.scope} may use {self.tokens.per_minute:g} tokens a minute"
                raise RateLimited(
                    "tokens",
                    f"{used}, and this request asks for up to {num_tokens}",
                    wait_s,
                    Figure("tokens_per_minute", self.tokens.per_minute),
                    Figure("tokens_left", self.tokens.level(now)),
                    Figure("num_tokens", num_tokens),
                )

    def take(self, num_tokens: int, num_sequences: int, now: float) -> None:
        """Takes one request. What exceeds the limits becomes a debt."""
        if self.tokens is not None:
            self.tokens.take(num_tokens, now)
        if self.requests is not None:
            self.requests.take(1, now)
        self.num_running += num_sequences

    def settle(self, num_reserved: int, num_used: int, num_sequences: int, now: float) -> None:
        """A request has ended: what it did not use is given back, and what it used beyond its reservation is a debt."""
        self.num_running -= num_sequences
        if self.tokens is not None:
            self.tokens.take(num_used - num_reserved, now)


class KeyLimits:
    """How much of its limits a key has used up: of those for all models together, and of those for single models. It
    outlives changes of the key file, where a key keeps its name."""

    __slots__ = ("_both", "_own", "whole")

    def __init__(self) -> None:
        self.whole = Quota()
        self._own: dict[str, Quota] = {}  # by model
        self._both: dict[str, tuple[Quota, ...]] = {}

    @property
    def num_running(self) -> int:
        return self.whole.num_running

    def follow(self, key: ApiKey, now: float) -> None:
        """Applies changed limits of the key."""
        self.whole.follow(key.rates, now)
        for model, rates in key.limits.items():
            self._own.setdefault(model, Quota(f" with the model {model!r}")).follow(rates, now)
        # What runs settles with the quota that it has taken from, also if that is no longer among these.
        self._own = {model: own for model, own in self._own.items() if model in key.limits}
        self._both = {model: (self.whole, own) for model, own in self._own.items()}

    def of(self, model: str) -> tuple[Quota, ...]:
        """The quotas that a request to this model takes from."""
        return self._both.get(model) or (self.whole,)


def check_all(quotas: Sequence[Quota], num_tokens: int, num_sequences: int, now: float) -> None:
    """Raises RateLimited if one of them does not allow a request."""
    for quota in quotas:
        quota.check(num_tokens, num_sequences, now)


def headers_of(quotas: Sequence[Quota], now: float) -> str:
    """OpenAI's x-ratelimit-* headers, as lines of a response: of the quota of which least is left."""
    lines = []
    for name in ("requests", "tokens"):
        buckets = [bucket for quota in quotas if (bucket := getattr(quota, name)) is not None]
        if buckets:
            bucket = min(buckets, key=lambda one: one.level(now))
            lines.append(f"x-ratelimit-limit-{name}: {int(bucket.per_minute)}\r\n")
            lines.append(f"x-ratelimit-remaining-{name}: {max(int(bucket.level(now)), 0)}\r\n")
            lines.append(f"x-ratelimit-reset-{name}: {duration(bucket.reset_s(now))}\r\n")
    return "".join(lines)


def duration(seconds: float) -> str:
    """A duration in OpenAI's format: 120ms, 1.5s, 6m0s."""
    if seconds < 1:
        return f"{seconds * 1e3:.0f}ms"
    minutes, rest = divmod(seconds, 60)
    return f"{minutes:.0f}m{rest:.0f}s" if minutes else f"{rest:.3f}".rstrip("0").rstrip(".") + "s"


def _at_rate(bucket: TokenBucket | None, per_minute: float | None, now: float) -> TokenBucket | None:
    if per_minute is None:
        return None
    if bucket is None:
        return TokenBucket(per_minute, now)
    if bucket.per_minute != per_minute:
        bucket.set_rate(per_minute, now)
    return bucket
