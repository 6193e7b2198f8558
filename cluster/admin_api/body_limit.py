"""Limits bodies, because FastAPI reads the whole body of a request before it checks the token."""

from __future__ import annotations

import asyncio

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

MAX_BODY_BYTES = 64 * 1024  # real requests have a few hundred bytes
BODY_TIMEOUT_S = 30.0
CLOSES = {"Connection": "close"}


class BodyLimit:
    """ASGI middleware that answers larger bodies with a 413, and those that do not come with a 408."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        num_bytes, has_more = 0, True
        until_s = asyncio.get_running_loop().time() + BODY_TIMEOUT_S

        async def receive_some() -> Message:
            nonlocal num_bytes, has_more
            try:
                async with asyncio.timeout_at(until_s if has_more else None):
                    message = await receive()
            except TimeoutError:
                raise HTTPException(408, f"the body has not come within {BODY_TIMEOUT_S:g} s", CLOSES) from None
            has_more = message.get("more_body", False)
            num_bytes += len(message.get("body", b""))
            if num_bytes > MAX_BODY_BYTES:
                raise HTTPException(413, f"the body is larger than {MAX_BODY_BYTES} bytes")
            return message

        await self._app(scope, receive_some, send)
