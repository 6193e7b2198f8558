"""Access control: who a caller is, what they may use, and what they have used."""

from __future__ import annotations

import asyncio
import hmac
import logging
import math
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path

from slipstream.router.access.api_key import ApiKey, digest_of
from slipstream.router.access.caller import ANYBODY, Caller
from slipstream.router.access.config import AccessConfig
from slipstream.router.access.key_file import FileVersion, KeyFileError, read_keys
from slipstream.router.access.limits import KeyLimits, LimitName, RateLimited
from slipstream.router.access.usage import Account, UsageBook, UsageCounts, UsageFile
from slipstream.router.generation import Figure, GenerationError
from slipstream.router.http.errors import HttpError, RequestError
from slipstream.router.http.reader import Request

log = logging.getLogger(__name__)

LOOK_EVERY_S = 1.0  # how often the key file is checked
SAVE_AFTER_S = 2.0  # how many seconds of usage a crash may cost


@dataclass(frozen=True, slots=True)
class Permit:
    """What an admitted request has reserved, until `Access.settle`."""

    caller: Caller
    model: str
    num_tokens: int
    num_sequences: int


class Access:
    """Without a key file everybody may do everything, and only the usage is counted. Everything runs on one event loop;
    files are read and written in `executor`.

    The key file is checked once a second, whether or not requests arrive: a removed key must not be accepted even once,
    and with front processes the dispatcher's process sees no callers. (Polling works alike on every file system, and
    for files that are replaced through a symbolic link.) If the file is broken or missing, the keys stay as they were.
    """

    def __init__(self, config: AccessConfig | None = None, executor: Executor | None = None) -> None:
        config = config or AccessConfig()
        self._executor = executor
        self._keys_path = Path(config.keys_file) if config.keys_file is not None else None
        self._usage_file = UsageFile(Path(config.usage_file)) if config.usage_file is not None else None
        self._callers: dict[bytes, Caller] = {}
        self._limits: dict[str, KeyLimits] = {}
        self._version: FileVersion | None = None
        self._look_timer: asyncio.TimerHandle | None = None
        self._reading: asyncio.Task[None] | None = None
        self._saving: asyncio.Task[None] | None = None
        self._save_timer: asyncio.TimerHandle | None = None
        self.usage = UsageBook()
        self.num_reloads: Counter[str] = Counter()  # by outcome: ok, failed
        self.num_unauthenticated: Counter[str] = Counter()  # by reason
        self.num_limited: Counter[tuple[str, LimitName]] = Counter()  # by tenant and limit

    @property
    def has_keys(self) -> bool:
        """Whether callers must present a key."""
        return self._keys_path is not None

    @property
    def num_keys(self) -> int:
        return len(self._callers)

    # ---- life cycle

    def open(self) -> None:
        """Reads the files, and watches the key file from now on. Raises ValueError if the key file is broken, OSError
        if the usage file cannot be used."""
        if self._keys_path is not None:
            self._version = _version_of(self._keys_path)
            self._install(read_keys(self._keys_path))
            log.log(level_of(self.num_keys), "%d API keys in %s", self.num_keys, self._keys_path)
        if self._usage_file is not None:
            try:
                self.usage.restore(self._usage_file.load().items())
            except OSError as error:
                raise OSError(error.errno, f"cannot use access.usage_file: {error}") from error
        if self._keys_path is not None:
            self._look_timer = asyncio.get_running_loop().call_later(LOOK_EVERY_S, self._look_at_file, self._keys_path)

    async def close(self) -> None:
        """Saves the usage."""
        for timer in (self._save_timer, self._look_timer):
            if timer is not None:
                timer.cancel()
        self._save_timer = self._look_timer = None
        for task in (self._reading, self._saving):
            if task is not None:
                await task
        await self._save()

    # ---- callers

    def authenticate(self, request: Request) -> Caller:
        """The sender of a request. Raises HttpError 401."""
        if self._keys_path is None:
            return ANYBODY
        return self.caller_with(request.headers.get(b"authorization", b""))

    def caller_with(self, authorization: bytes) -> Caller:
        """The caller with this Authorization header. Raises HttpError 401."""
        scheme, _, secret = authorization.partition(b" ")
        secret = secret.strip()
        if scheme.lower() != b"bearer" or not secret:
            raise self._unauthenticated("missing", "No API key was given. Send it as 'Authorization: Bearer KEY'.")
        digest = digest_of(secret)
        caller = self._callers.get(digest)
        key = caller.key if caller is not None else None
        # The lookup compared hashes, whose timing reveals nothing about a secret; this compares the whole digest again.
        if caller is None or key is None or not hmac.compare_digest(key.digest, digest):
            raise self._unauthenticated("unknown", "Incorrect API key provided.")
        if key.expires_s is not None and time.time() >= key.expires_s:
            raise self._unauthenticated("expired", f"The API key {key.name!r} has expired.")
        return caller

    def admit(
        self, caller: Caller, model: str, num_tokens: int, num_sequences: int, is_resumed: bool = False
    ) -> tuple[Permit, str]:
        """Admits a request within the limits of its key. Returns a permit, which must be settled, and header lines for
        the response. Raises HttpError 429 if it exceeds a limit, 400 if it could never be admitted; but neither for one
        that `is_resumed`, because the previous router has admitted it."""
        permit = Permit(caller, model, num_tokens, num_sequences)
        if caller.key is None:
            return permit, ""
        most = caller.key.max_concurrent
        if most is not None and num_sequences > most:
            message = f"'n' asks for {num_sequences} choices in all; this API key may have {most} at a time."
            figures = (Figure("max_concurrent", most), Figure("num_sequences", num_sequences))
            error = GenerationError("invalid_request", message.removesuffix("."), figures=figures)
            raise RequestError(400, message, error, kind="invalid_request_error", param="n", code="invalid_value")
        now = time.monotonic()
        limits = self._limits_of(caller.key, now)
        if is_resumed:
            limits.take(num_tokens, num_sequences, now)
            return permit, limits.headers(now)
        try:
            limits.admit(caller.key, num_tokens, num_sequences, now)
        except RateLimited as limited:
            self.num_limited[caller.key.tenant, limited.limit] += 1
            raise self._limited(limited, limits.headers(now)) from None
        return permit, limits.headers(now)

    async def enter(
        self, caller: Caller, model: str, num_tokens: int, num_sequences: int, is_resumed: bool = False
    ) -> tuple[Permit, str]:
        """The same as `admit`, but awaitable, because in a front process the limits are counted elsewhere."""
        return self.admit(caller, model, num_tokens, num_sequences, is_resumed)

    def caller_of(self, digest: bytes) -> Caller:
        """The caller whose key has this digest, as a front process has found out. Raises HttpError 401."""
        caller = self._callers.get(digest)
        if caller is None:
            raise self._unauthenticated("unknown", "Incorrect API key provided.")
        return caller

    def settle(self, permit: Permit, used: UsageCounts) -> None:
        """A request has ended: counts what it used, and gives back what it reserved beyond that."""
        key = permit.caller.key
        account = Account(permit.caller.name, permit.caller.tenant(""), permit.model)
        self.usage.add(account, used)
        if key is not None:
            limits = self._limits.get(key.name)
            if limits is not None:
                limits.settle(permit.num_tokens, used.num_tokens, permit.num_sequences, time.monotonic())
        if self._usage_file is not None and self._save_timer is None and self._saving is None:
            self._save_timer = asyncio.get_running_loop().call_later(SAVE_AFTER_S, self._begin_save)

    def usage_of(self, caller: Caller) -> Iterator[tuple[Account, UsageCounts]]:
        """The usage of the caller's key; for an administrator, of all keys."""
        return ((account, counts) for account, counts in self.usage if caller.is_admin or account.key == caller.name)

    def _limits_of(self, key: ApiKey, now: float) -> KeyLimits:
        limits = self._limits.get(key.name)
        if limits is None:
            limits = self._limits[key.name] = KeyLimits()
            limits.follow(key, now)
        return limits

    def _unauthenticated(self, reason: str, message: str) -> HttpError:
        self.num_unauthenticated[reason] += 1
        return HttpError(401, message, code="invalid_api_key", headers=(("www-authenticate", "Bearer"),))

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

    # ---- the key file

    def _look_at_file(self, path: Path) -> None:
        loop = asyncio.get_running_loop()
        self._look_timer = loop.call_later(LOOK_EVERY_S, self._look_at_file, path)
        if self._reading is not None:
            return
        version = _version_of(path)
        if version != self._version:
            self._version = version
            self._reading = loop.create_task(self._read_again(path))

    async def _read_again(self, path: Path) -> None:
        try:
            keys = await asyncio.get_running_loop().run_in_executor(self._executor, read_keys, path)
        except KeyFileError as error:
            self.num_reloads["failed"] += 1
            log.error("the API keys stay as they were: %s", error)
        else:
            self._install(keys)
            self.num_reloads["ok"] += 1
            log.log(level_of(len(keys)), "the API keys have changed: %d in %s", len(keys), path)
        finally:
            self._reading = None

    def _install(self, keys: list[ApiKey]) -> None:
        now = time.monotonic()
        self._callers = {key.digest: Caller(key) for key in keys}
        by_name = {key.name: key for key in keys}
        # Keep the limits of removed keys that still have requests running, which will settle with them.
        self._limits = {name: limits for name, limits in self._limits.items() if name in by_name or limits.num_running}
        for name, limits in self._limits.items():
            if name in by_name:
                limits.follow(by_name[name], now)

    # ---- the usage file

    def _begin_save(self) -> None:
        self._save_timer = None
        self._saving = asyncio.get_running_loop().create_task(self._save_and_note())

    async def _save_and_note(self) -> None:
        try:
            await self._save()
        finally:
            self._saving = None

    async def _save(self) -> None:
        unsaved = self.usage.unsaved() if self._usage_file is not None else {}
        if self._usage_file is None or not unsaved:
            return
        try:
            await asyncio.get_running_loop().run_in_executor(self._executor, self._usage_file.append, unsaved)
        except OSError as error:
            log.error("the usage could not be saved, and is tried again with the next: %s", error)
        else:
            self.usage.note_saved(unsaved)


def level_of(num_keys: int) -> int:
    """The log level for a number of keys: a file without keys locks everybody out, which may be a mistake."""
    return logging.INFO if num_keys else logging.WARNING


def _version_of(path: Path) -> FileVersion | None:
    """The version of the file; None if it cannot be read, in which case reading it will say why."""
    try:
        return FileVersion.of(path)
    except OSError:
        return None
