"""Requests of the tensor API with anything wrong in them."""

from __future__ import annotations

import random
from typing import Any

import orjson

from tests.support.router.fake_cluster import run
from tests.support.router.kserve_site import AB, ADD_SUB, given, kserve_site

NUM_REQUESTS = 400
VALUES: list[Any] = [
    None,
    True,
    0,
    1,
    -1,
    2**31,
    2**63,
    1.5,
    1e308,
    "",
    "é",
    "\0",
    [],
    [[]],
    {},
    [None],
    "FP32",
    "BYTES",
]
VALUES += ["BF16", [1, 4], [0], [2**62, 2**62], [-1]]
NAMES = ("name", "shape", "datatype", "data", "parameters", "binary_data_size", "classification", "id", "sequence_id")
NAMES += ("shared_memory_region", "shared_memory_byte_size", "shared_memory_offset", "priority", "triton_x")
BODIES: list[tuple[str, Any]] = [
    (
        ADD_SUB,
        {
            "id": "a",
            "parameters": {"a": 1, "sequence_id": 4, "binary_data_output": True},
            "inputs": AB,
            "outputs": [{"name": "SUM", "parameters": {"binary_data": True, "classification": 2}}, {"name": "DIFF"}],
        },
    ),
    (
        "/v2/models/types/infer",
        {
            "inputs": [
                given("INT8", "INT8", [1, 2], [1, 2]),
                given("BYTES", "BYTES", [1, 2], ["a", "b"]),
                given("FP64", "FP64", [1, 2], binary_data_size=16),
            ]
        },
    ),
    ("/v2/models/text/generate", {"X": "hi", "a": 1, "parameters": {"b": 2}, "id": "x"}),
    ("/v2/models/repeat/generate_stream", {"IN": [1, 2, 3]}),
    ("/v2/repository/index", {"ready": True}),
    ("/v2/repository/models/m/load", {"parameters": {"config": "{}", "file:1/a": "YQ=="}}),
    ("/v2/repository/models/m/unload", {"parameters": {"unload_dependents": True}}),
    ("/v2/systemsharedmemory/region/r/register", {"key": "/nothing", "offset": 0, "byte_size": 4}),
    ("/v2/trace/setting", {"trace_level": ["OFF"], "trace_rate": "3", "trace_count": "2"}),
    ("/v2/logging", {"log_format": "default", "log_verbose_level": 0}),
]


def spoiled(rng: random.Random, value: Any) -> Any:
    """`value` with some parts replaced, left out or added."""
    if rng.random() < 0.12:
        return rng.choice(VALUES)
    if isinstance(value, dict):
        fields = {
            name if rng.random() > 0.04 else rng.choice(NAMES): spoiled(rng, inner)
            for name, inner in value.items()
            if rng.random() > 0.04
        }
        if rng.random() < 0.1:
            fields[rng.choice(NAMES)] = rng.choice(VALUES)
        return fields
    if isinstance(value, list):
        return [spoiled(rng, inner) for inner in value if rng.random() > 0.03]
    return value


def spoiled_request(rng: random.Random) -> tuple[str, bytes, dict[str, str]]:
    path, body = rng.choice(BODIES)
    data = bytearray(orjson.dumps(spoiled(rng, body)))
    headers = {}
    kind = rng.random()
    if kind < 0.3:
        lengths = [len(data), 0, len(data) - 1, len(data) + 1, "x"]
        headers["Inference-Header-Content-Length"] = str(rng.choice(lengths))
        data += rng.randbytes(rng.choice([0, 4, 16, 17]))
    elif kind < 0.4:
        data[rng.randrange(len(data))] = rng.randrange(256)
    if rng.random() < 0.05:
        headers["Content-Encoding"] = rng.choice(["gzip", "deflate", "br", "identity"])
    if rng.random() < 0.1:
        headers["Accept-Encoding"] = rng.choice(["gzip", "deflate;q=x", "a,b;q=1,gzip;q=2", "*", ";q="])
    return path, bytes(data), headers


def test_no_request_is_an_internal_error_and_all_memory_comes_back() -> None:
    async def main() -> None:
        rng = random.Random(0)
        async with kserve_site() as site:
            for _ in range(NUM_REQUESTS):
                path, data, headers = spoiled_request(rng)
                status, _, body = await site.post(path, data, headers)
                assert b"Internal error" not in body, (path, data, headers)
                assert status in (200, 400, 404, 500, 501, 503)

    run(main)
