"""Hostile to the endpoints of OpenAI's shape."""

from __future__ import annotations

from collections.abc import Iterator

from tests.support.hostile.hostile_request import ANY, DEEP, MANY, MIB, REFUSED, HostileRequest, json_bytes


def of_embeddings() -> Iterator[HostileRequest]:
    path = "/v1/embeddings"
    for name, fields in {
        "a million texts": {"input": ["a"] * MANY},
        "a million tokens": {"input": [5] * MANY},
        "tokens below 0": {"input": [-1, -2]},
        "tokens of 2**70": {"input": [2**70]},
        "tokens beyond the vocabulary": {"input": [2**30]},
        "a text of 8 MiB": {"input": "a " * 4 * MIB},
        "no text": {"input": []},
        "an empty text": {"input": ""},
        "texts and tokens": {"input": ["a", 5]},
        "an object": {"input": {"a": 1}},
        "nothing": {},
        "dimensions 1e9": {"input": "a", "dimensions": 10**9},
        "dimensions 0": {"input": "a", "dimensions": 0},
        "another encoding": {"input": "a", "encoding_format": "hex"},
        "model a list": {"input": "a", "model": ["encoder"]},
        "model unknown": {"input": "a", "model": "x" * 100_000},
    }.items():
        allowed = ANY if name == "an empty text" else REFUSED
        yield HostileRequest(f"embeddings {name}", path, json_bytes({"model": "encoder", **fields}), allowed=allowed)
    lone = b'{"model": "encoder", "input": "\\ud800"}'
    yield HostileRequest("embeddings half a pair", path, lone, allowed=ANY)
    yield HostileRequest("embeddings invalid UTF-8", path, b'{"model": "encoder", "input": "\xff\xfe"}')
    yield HostileRequest("embeddings deep JSON", path, b'{"model": "encoder", "input": ' + b"[" * DEEP)
    closed = b'{"model": "encoder", "input": ' + b"[" * DEEP + b"]" * DEEP + b"}"
    yield HostileRequest("embeddings deep JSON that is whole", path, closed)
    yield HostileRequest("embeddings no JSON", path, b"\x00" * 1000)
    yield HostileRequest("embeddings an array", path, b"[]")


def of_rerank() -> Iterator[HostileRequest]:
    for name, fields in {
        "a million documents": {"documents": ["a"] * MANY},
        "no documents": {"documents": []},
        "documents of numbers": {"documents": [1, 2]},
        "documents of empty objects": {"documents": [{}]},
        "query a list": {"query": ["a"], "documents": ["a"]},
        "top_n -1": {"documents": ["a"], "top_n": -1},
        "top_n text": {"documents": ["a"], "top_n": "all"},
        "query of 8 MiB": {"query": "a " * 4 * MIB, "documents": ["a"]},
    }.items():
        body = json_bytes({"model": "reranker", "query": "a", **fields})
        yield HostileRequest(f"rerank {name}", "/v1/rerank", body)
    yield HostileRequest("rerank deep JSON", "/v1/rerank", b'{"model": "reranker", "documents": ' + b"[" * DEEP)


def of_images() -> Iterator[HostileRequest]:
    for name, fields in {
        "n 1e9": {"n": 10**9},
        "n 0": {"n": 0},
        "size 1e9": {"size": "1000000000x1000000000"},
        "size no size": {"size": "x"},
        "size a number": {"size": 7},
        "prompt a list": {"prompt": ["a"]},
        "no prompt": {"prompt": None},
        "seed 2**70": {"seed": 2**70},
        "steps 1e12": {"steps": 10**12},
        "another format": {"output_format": "bmp"},
        "quality of 1e9": {"output_format": "jpeg", "output_compression": 10**9},
    }.items():
        body = json_bytes({"model": "noise", "prompt": "a", **fields})
        yield HostileRequest(f"images {name}", "/v1/images/generations", body)
    deep = b'{"model": "noise", "prompt": ' + b"[" * DEEP
    yield HostileRequest("images deep JSON", "/v1/images/generations", deep)
