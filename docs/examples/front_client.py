"""A small client for a web application that stands in front of a router: it sends requests on, and streams answers."""

from collections.abc import AsyncIterator
from typing import NamedTuple

import httpx

PASSED_ON = ("content-type", "x-request-id", "retry-after")  # of an answer's headers
TIMEOUT = httpx.Timeout(10.0, read=600.0)  # of the connection; between two parts of an answer


class RouterAnswer(NamedTuple):
    status: int
    headers: dict[str, str]
    parts: AsyncIterator[bytes]  # to be read to its end, or closed


class RouterClient:
    """`url` is that of the router, `key` an API key. One client serves any number of requests at once."""

    def __init__(self, url: str, key: str = "") -> None:
        headers = {"authorization": f"Bearer {key}"} if key else {}
        limits = httpx.Limits(max_connections=1000)
        self._http = httpx.AsyncClient(base_url=url, headers=headers, timeout=TIMEOUT, limits=limits)

    async def send(self, path: str, body: bytes, request_id: str = "") -> RouterAnswer:
        """The answer as it comes; its status is known before its first part. Raises httpx.TransportError. Nothing is
        sent twice: the router itself tries again where that is safe."""
        headers = {"content-type": "application/json"} | ({"x-request-id": request_id} if request_id else {})
        request = self._http.build_request("POST", path, content=body, headers=headers)
        response = await self._http.send(request, stream=True)
        shown = {name: value for name, value in response.headers.items() if name in PASSED_ON}
        return RouterAnswer(response.status_code, shown, self._parts(response))

    @staticmethod
    async def _parts(response: httpx.Response) -> AsyncIterator[bytes]:
        try:
            async for part in response.aiter_raw():
                yield part
        finally:
            await response.aclose()  # a client that leaves ends the generation

    async def close(self) -> None:
        await self._http.aclose()
