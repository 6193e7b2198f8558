"""Inference that is restricted for KServe over HTTP is not open at the endpoints over the same models."""

from __future__ import annotations

import orjson
import pytest

from slipstream.router.config.endpoints_config import (
    ChatEndpoint,
    EmbeddingsEndpoint,
    EndpointsConfig,
    ImagesEndpoint,
    RerankEndpoint,
)
from slipstream.router.config.kserve_config import RestrictedApis, RestrictedName
from tests.support.router.endpoint_site import endpoint_site
from tests.support.router.fake_tensor_service import FakeTensorService
from tests.support.router.in_loop import in_loop

CONFIG = EndpointsConfig(
    embeddings={"m": EmbeddingsEndpoint()},
    rerank={"m": RerankEndpoint()},
    images={"m": ImagesEndpoint()},
    chat={"m": ChatEndpoint()},
)
REQUESTS: dict[str, dict[str, object]] = {
    "/v1/embeddings": {"model": "m", "input": "a text"},
    "/v1/rerank": {"model": "m", "query": "a", "documents": ["b"]},
    "/v1/score": {"model": "m", "text_1": "a", "text_2": "b"},
    "/v1/images/generations": {"model": "m", "prompt": "a cat"},
    "/v1/chat/completions": {"model": "m", "messages": [{"role": "user", "content": "a"}]},
    "/v1/completions": {"model": "m", "prompt": "a"},
}
KEY = {"X-Key": "secret"}


async def statuses(restricted: RestrictedName, headers: dict[str, str]) -> dict[str, int]:
    restrictions = [RestrictedApis((restricted,), "X-Key", "secret")]
    async with endpoint_site(FakeTensorService(), CONFIG, restricted=restrictions) as site:
        return {
            path: (await site.call("POST", path, orjson.dumps(body), headers))[0] for path, body in REQUESTS.items()
        }


@pytest.mark.parametrize("headers", [{}, {"X-Key": "other"}])
@in_loop
async def test_without_the_header_no_endpoint_answers(headers: dict[str, str]) -> None:
    assert await statuses("inference", headers) == dict.fromkeys(REQUESTS, 403)


@pytest.mark.parametrize(("restricted", "headers"), [("inference", KEY), ("model-repository", {})])
@in_loop
async def test_with_the_header_and_where_something_else_is_restricted_they_do(
    restricted: RestrictedName, headers: dict[str, str]
) -> None:
    found = await statuses(restricted, headers)
    assert 403 not in found.values()  # the models are not there, which is another error
