"""The callers that the file of API keys lets in. The file is watched: changes take effect without a restart."""

from __future__ import annotations

import asyncio
import hmac
import logging
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from pathlib import Path

from slipstream.router.access.api_key import ApiKey, digest_of
from slipstream.router.access.caller import ANYBODY, Caller
from slipstream.router.access.entry_list import FileVersion, KeyFileError
from slipstream.router.access.key_file import read_keys
from slipstream.router.http.http_error import HttpError
from slipstream.router.http.reader import KEY_HEADER, Request, authorization_of

log = logging.getLogger(__name__)

LOOK_EVERY_S = 1.0  # how often the file is checked


class KeyRing:
    """Life cycle: `open`, `watch`, `close`, all on one event loop; the file is read in `executor`. `path` None: there
    are no keys, and all callers are accepted. `follow` is called with all keys when they are first read and when they
    change.

    The file is checked once a second, whether or not requests arrive: a removed key must not be accepted even once, and
    with front processes the dispatcher's process sees no callers. (Polling works alike on every file system, and for
    files that are replaced through a symbolic link.) If the file is broken or missing, the keys stay as they were.
    """

    def __init__(
        self, path: Path | None, executor: Executor | None, follow: Callable[[Sequence[ApiKey]], None]
    ) -> None:
        self._path = path
        self._executor = executor
        self._follow = follow
        self._callers: dict[bytes, Caller] = {}  # by the digest of their key
        self._version: FileVersion | None = None
        self._look_timer: asyncio.TimerHandle | None = None
        self._reading: asyncio.Task[None] | None = None
        self.num_reloads: Counter[str] = Counter()  # by outcome: ok, failed
        self.num_unauthenticated: Counter[str] = Counter()  # by reason

    @property
    def num_keys(self) -> int:
        return len(self._callers)

    @property
    def is_on(self) -> bool:
        """Whether callers must present a key."""
        return self._path is not None

    def authenticate(self, request: Request) -> Caller:
        """The sender of a request. Raises HttpError 401."""
        if self._path is None:
            return ANYBODY
        return self.caller_with(
            authorization_of(request.headers.get(b"authorization", b""), request.headers.get(KEY_HEADER, b""))
        )

    def caller_with(self, authorization: bytes) -> Caller:
        """The caller with this Authorization header. Raises HttpError 401."""
        scheme, _, secret = authorization.partition(b" ")
        secret = secret.strip()
        if scheme.lower() != b"bearer" or not secret:
            raise self._unauthenticated(
                "missing", "No API key was given. Send it as 'Authorization: Bearer KEY' or as 'x-api-key: KEY'."
            )
        digest = digest_of(secret)
        caller = self._callers.get(digest)
        key = caller.key if caller is not None else None
        # The lookup compared hashes, whose timing reveals nothing about a secret; this compares the whole digest again.
        if caller is None or key is None or not hmac.compare_digest(key.digest, digest):
            raise self._unauthenticated("unknown", "Incorrect API key provided.")
        if key.expires_s is not None and time.time() >= key.expires_s:
            raise self._unauthenticated("expired", f"The API key {key.name!r} has expired.")
        return caller

    def caller_of(self, digest: bytes) -> Caller:
        """The caller whose key has this digest, as a front process has found out. Raises HttpError 401."""
        caller = self._callers.get(digest)
        if caller is None:
            raise self._unauthenticated("unknown", "Incorrect API key provided.")
        return caller

    def caller_by(self, key_digest: str) -> Caller:
        """The caller who left work here with a key of this digest, in hexadecimal ("": there were no keys). Raises
        HttpError 401 if the key is no longer valid."""
        if not key_digest and not self.is_on:
            return ANYBODY
        caller = self.caller_of(bytes.fromhex(key_digest))
        if caller.key is not None and caller.key.expires_s is not None and time.time() >= caller.key.expires_s:
            raise self._unauthenticated("expired", f"The API key {caller.key.name!r} has expired.")
        return caller

    def _unauthenticated(self, reason: str, message: str) -> HttpError:
        self.num_unauthenticated[reason] += 1
        return HttpError(401, message, code="invalid_api_key", headers=(("www-authenticate", "Bearer"),))

    def open(self) -> None:
        """Reads the file. Blocks. Raises ValueError if it is broken."""
        if self._path is not None:
            self._version = _version_of(self._path)
            self._install(read_keys(self._path))
            log.log(level_of(self.num_keys), "%d API keys in %s", self.num_keys, self._path)

    def watch(self) -> None:
        """Looks at the file from now on."""
        if self._path is not None:
            self._look_timer = asyncio.get_running_loop().call_later(LOOK_EVERY_S, self._look, self._path)

    async def close(self) -> None:
        if self._look_timer is not None:
            self._look_timer.cancel()
            self._look_timer = None
        if self._reading is not None:
            await self._reading

    def _look(self, path: Path) -> None:
        loop = asyncio.get_running_loop()
        self._look_timer = loop.call_later(LOOK_EVERY_S, self._look, path)
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

    def _install(self, keys: Sequence[ApiKey]) -> None:
        self._callers = {key.digest: Caller(key) for key in keys}
        self._follow(keys)


def level_of(num_keys: int) -> int:
    """The log level for a number of keys: a file without keys locks all callers out, which may be a mistake."""
    return logging.INFO if num_keys else logging.WARNING


def _version_of(path: Path) -> FileVersion | None:
    """The version of the file; None if it cannot be read, in which case reading it will say why."""
    try:
        return FileVersion.of(path)
    except OSError:
        return None
