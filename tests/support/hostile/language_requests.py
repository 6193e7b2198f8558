"""Hostile to language models of a repository."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from typing import Any

from tritonclient.grpc import service_pb2 as pb

from tests.support.hostile.hostile_request import (
    ANY,
    DEEP,
    MANY,
    MIB,
    REFUSED,
    TRITON,
    HostileRequest,
    binary,
    bytes_tensor,
    json_bytes,
)


def of_texts() -> Iterator[HostileRequest]:
    """Of a model of the vllm backend."""
    path = "/v2/models/story/generate"
    fields: dict[str, Any] = {
        "temperature NaN": {"temperature": float("nan")},
        "temperature Infinity": {"temperature": float("inf")},
        "temperature -1": {"temperature": -1},
        "temperature text": {"temperature": "NaN"},
        "max_tokens 1e18": {"max_tokens": 10**18},
        "max_tokens 2**70": {"max_tokens": 2**70},
        "max_tokens -5": {"max_tokens": -5},
        "max_tokens list": {"max_tokens": [1, 2]},
        "n 1e9": {"n": 10**9},
        "logprobs 1e9": {"logprobs": 10**9},
        "top_p 2": {"top_p": 2},
        "top_k -9": {"top_k": -9},
        "stop not JSON": {"stop": '["a'},
        "seed 2**200": {"seed": 2**200},
        "unknown parameter": {"no_such_thing": 1},
    }
    for name, parameters in fields.items():
        yield HostileRequest(f"vllm {name}", path, json_bytes({"text_input": "a", **parameters}))
    for name, text in {
        "NaN": '{"temperature": NaN}',
        "1e999": '{"temperature": 1e999}',
        "cut short": '{"temperature": 1',
        "a list": "[1, 2]",
        "a number": "7",
        "deep": "[" * DEEP,
        "deep object": '{"stop": ' * 50_000,
        "a million stop words": json.dumps({"stop": [str(one) for one in range(MANY)]}),
        "stop of 8 MiB": json.dumps({"stop": ["x" * 8 * MIB]}),
        "logit_bias of a million": json.dumps({"logit_bias": {str(one): 1 for one in range(MANY)}}),
        "surrogates": '{"stop": ["\\ud800"]}',
        "huge number": '{"max_tokens": ' + "9" * 5000 + "}",
    }.items():
        allowed = ANY if name == "surrogates" else REFUSED
        body = json_bytes({"text_input": "a", "sampling_parameters": text})
        yield HostileRequest(f"vllm sampling_parameters {name}", path, body, allowed=allowed)
    yield HostileRequest("vllm text of 8 MiB", path, json_bytes({"text_input": "a" * 8 * MIB}))
    yield HostileRequest("vllm no text", path, b"{}")
    yield HostileRequest("vllm empty text", path, json_bytes({"text_input": "", "max_tokens": 1}), allowed=ANY)
    yield HostileRequest("vllm deep body", path, b'{"text_input": ' + b"[" * DEEP, allowed=TRITON)


def streamed_requests() -> Iterator[tuple[str, pb.ModelInferRequest]]:
    """Of the same model, over a stream of gRPC; name and request. Each is to be answered by an error."""
    texts = {
        "invalid UTF-8": ([1], bytes_tensor([b"\xff\xfe\x80"])),
        "two texts": ([2], bytes_tensor([b"a", b"b"])),
        "a length beyond the data": ([1], struct.pack("<I", 2**32 - 1)),
        "a length of half": ([1], b"\x07\x00"),
        "a million texts": ([MANY], bytes_tensor([b"a"] * MANY)),
        "a shape of 2**62": ([2**31, 2**31], bytes_tensor([b"a"])),
        "a text of 8 MiB": ([1], bytes_tensor([b"a" * 8 * MIB])),
    }
    for name, (shape, raw) in texts.items():
        request = pb.ModelInferRequest(model_name="story")
        request.inputs.add(name="text_input", datatype="BYTES", shape=shape)
        request.raw_input_contents.append(raw)
        yield f"gRPC {name}", request
    for name, value in {"NaN": float("nan"), "-inf": float("-inf")}.items():
        request = pb.ModelInferRequest(model_name="story")
        request.inputs.add(name="text_input", datatype="BYTES", shape=[1])
        request.raw_input_contents.append(bytes_tensor([b"a"]))
        request.parameters["temperature"].double_param = value
        yield f"gRPC temperature {name}", request


def of_tokens() -> Iterator[HostileRequest]:
    """Of a model of the tensorrtllm backend."""
    ids = ("input_ids", "INT32", [1, 2], struct.pack("<2i", 5, 6))
    lengths = ("input_lengths", "INT32", [1, 1], struct.pack("<i", 2))
    asked = ("request_output_len", "INT32", [1, 1], struct.pack("<i", 2))
    usual = {one[0]: one for one in (ids, lengths, asked)}
    words = struct.pack(f"<{2 * MANY}i", *([5] * MANY), *range(1, MANY + 1))
    bad: dict[str, tuple[str, str, list[int], bytes]] = {
        "request_output_len 2**31-1": ("request_output_len", "INT32", [1, 1], struct.pack("<i", 2**31 - 1)),
        "request_output_len -1": ("request_output_len", "INT32", [1, 1], struct.pack("<i", -1)),
        "input_lengths 2**30": ("input_lengths", "INT32", [1, 1], struct.pack("<i", 2**30)),
        "input_lengths -3": ("input_lengths", "INT32", [1, 1], struct.pack("<i", -3)),
        "token -1": ("input_ids", "INT32", [1, 2], struct.pack("<2i", -1, 5)),
        "token 2**30": ("input_ids", "INT32", [1, 2], struct.pack("<2i", 2**30, 5)),
        "temperature NaN": ("temperature", "FP32", [1, 1], struct.pack("<f", float("nan"))),
        "temperature Infinity": ("temperature", "FP32", [1, 1], struct.pack("<f", float("inf"))),
        "top_p NaN": ("runtime_top_p", "FP32", [1, 1], struct.pack("<f", float("nan"))),
        "top_k -7": ("runtime_top_k", "INT32", [1, 1], struct.pack("<i", -7)),
        "a million stop words": ("stop_words_list", "INT32", [1, 2, MANY], words),
        "a million bad words": ("bad_words_list", "INT32", [1, 2, MANY], words),
        "offsets beyond the words": ("stop_words_list", "INT32", [1, 2, 1], struct.pack("<2i", 5, 2**30)),
        "offsets below 0": ("stop_words_list", "INT32", [1, 2, 2], struct.pack("<4i", 5, 6, -9, -3)),
        "sequences 2**30": ("num_return_sequences", "INT32", [1, 1], struct.pack("<i", 2**30)),
        "beam_width 2**30": ("beam_width", "INT32", [1, 1], struct.pack("<i", 2**30)),
    }
    for name, tensor in bad.items():
        yield binary(f"tensorrtllm {name}", "tokens", list((usual | {tensor[0]: tensor}).values()))
    ids, lengths = ("input_ids", "INT32", [1, MANY], bytes(4 * MANY)), (*lengths[:3], struct.pack("<i", MANY))
    yield binary("tensorrtllm a million tokens", "tokens", [ids, lengths, asked])
