"""Who may call which RPC: API keys in the metadata, and groups of RPCs that need a header."""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import grpc

from slipstream.router.access.caller import ANYBODY, Caller
from slipstream.router.access.key_ring import KeyRing
from slipstream.router.api.kserve.grpc.calls.rpc_error import RpcError
from slipstream.router.config.kserve_config import RestrictedApis, RestrictedName
from slipstream.router.http.http_error import HttpError
from slipstream.router.http.reader import authorization_of

Metadata = Iterable[tuple[str, str | bytes]]


@dataclass(frozen=True, slots=True)
class RpcRights:
    """`group` is what `restricted` names. `is_open`: no key is needed; `is_admin`: that of an administrator is. An RPC
    that `waits` is served once the models of the start are loaded: a client of the previous router must not find fewer
    models, and what it loads must not be loaded by the start after it."""

    group: RestrictedName
    is_open: bool = False
    is_admin: bool = False
    waits: bool = False


class RpcAccess:
    """Without keys and restrictions all callers may do everything. The models of the start are `loaded`."""

    def __init__(self, keys: KeyRing, restricted: Sequence[RestrictedApis], loaded: asyncio.Event) -> None:
        self._keys = keys
        self._loaded = loaded
        self._restricted: Mapping[str, RestrictedApis] = {group: apis for apis in restricted for group in apis.apis}

    async def enter(self, rights: RpcRights, metadata: Metadata) -> Caller:
        """The sender of an RPC, when that may be served. Raises RpcError if it may not be called."""
        caller = self._caller(rights, metadata)
        if rights.waits and not self._loaded.is_set():
            await self._loaded.wait()
        return caller

    def _caller(self, rights: RpcRights, metadata: Metadata) -> Caller:
        restriction = self._restricted.get(rights.group)
        if restriction is None and (rights.is_open or not self._keys.is_on):
            return ANYBODY
        given = {name: value if isinstance(value, bytes) else value.encode() for name, value in metadata}
        if restriction is not None:
            _check(restriction, given)
        if rights.is_open or not self._keys.is_on:
            return ANYBODY
        try:
            caller = self._keys.caller_with(
                authorization_of(given.get("authorization", b""), given.get("x-api-key", b""))
            )
        except HttpError as error:
            raise RpcError.of_access(error) from None
        if rights.is_admin and not caller.is_admin:
            raise RpcError(grpc.StatusCode.PERMISSION_DENIED, "This RPC needs an API key of an administrator.")
        return caller


def _check(restriction: RestrictedApis, given: Mapping[str, bytes]) -> None:
    header = restriction.header.lower()
    if not hmac.compare_digest(given.get(header, b""), restriction.value.encode()):
        message = f"This protocol is restricted, expecting header '{header}'"
        raise RpcError(grpc.StatusCode.UNAVAILABLE, message)
