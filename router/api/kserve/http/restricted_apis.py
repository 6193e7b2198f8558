"""Groups of calls that need a header with a value of the deployment's."""

from __future__ import annotations

import hmac
from collections.abc import Iterable

from slipstream.router.config.kserve_config import RestrictedApis, RestrictedName
from slipstream.router.http.http_error import HttpError
from slipstream.router.http.reader import Request


class ApiRestrictions:
    """They hold for KServe's paths and, for inference, at the endpoints of OpenAI's shape over the same models."""

    def __init__(self, restricted: Iterable[RestrictedApis] = ()) -> None:
        self._by_group: dict[RestrictedName, list[RestrictedApis]] = {}
        for one in restricted:
            for group in one.apis:
                self._by_group.setdefault(group, []).append(one)

    def check(self, group: RestrictedName, request: Request) -> None:
        """Raises HttpError 403 without the header."""
        for restricted in self._by_group.get(group, ()):
            value = request.headers.get(restricted.header.lower().encode(), b"")
            if not hmac.compare_digest(value, restricted.value.encode()):
                raise HttpError(
                    403, f"This API is restricted, expecting header '{restricted.header}'", code="restricted"
                )
