"""Requests that no server should be asked, over HTTP: each is to be refused by name, soon, and in little memory."""

from __future__ import annotations

import io
import itertools
import json
import struct
import wave
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from tritonclient.grpc import service_pb2 as pb

from tests.support.tensor_faults.http_client import HEAD_LENGTH

JSON = {"content-type": "application/json"}
REFUSED = tuple(range(400, 500))
TRITON = (*REFUSED, 500)  # which Triton answers to JSON and configurations that cannot be read
ANY = (200, *TRITON)
BOUNDARY = "edge"
FORM = {"content-type": f"multipart/form-data; boundary={BOUNDARY}"}
MIB = 1 << 20
HARMLESS = ("tensorrtllm request_output_len 2**31-1", "tensorrtllm top_k -7", "tensorrtllm offsets below 0")
DEEP = 100_000  # brackets, one in the other
MANY = 1_000_000


@dataclass(frozen=True, slots=True)
class HostileRequest:
    """`allowed`: statuses. Those that may be answered with 200 are hostile only in their size."""

    name: str
    path: str
    body: bytes
    headers: dict[str, str] = field(default_factory=lambda: dict(JSON))
    allowed: tuple[int, ...] = REFUSED


def hostile_requests() -> Iterator[HostileRequest]:
    yield from _of_texts()
    yield from _of_tokens()
    yield from _of_ensembles()
    yield from _of_embeddings()
    yield from _of_rerank()
    yield from _of_images()
    yield from _of_audio()
    yield from _of_repository()


def _of_texts() -> Iterator[HostileRequest]:
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
        yield HostileRequest(f"vllm {name}", path, _json({"text_input": "a", **parameters}))
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
        body = _json({"text_input": "a", "sampling_parameters": text})
        yield HostileRequest(f"vllm sampling_parameters {name}", path, body, allowed=allowed)
    yield HostileRequest("vllm text of 8 MiB", path, _json({"text_input": "a" * 8 * MIB}))
    yield HostileRequest("vllm no text", path, b"{}")
    yield HostileRequest("vllm empty text", path, _json({"text_input": "", "max_tokens": 1}), allowed=ANY)
    yield HostileRequest("vllm deep body", path, b'{"text_input": ' + b"[" * DEEP, allowed=TRITON)


def streamed_requests() -> Iterator[tuple[str, pb.ModelInferRequest]]:
    """Of the same model, over a stream of gRPC; name and request. Each is to be answered by an error."""
    texts = {
        "invalid UTF-8": ([1], _bytes_tensor([b"\xff\xfe\x80"])),
        "two texts": ([2], _bytes_tensor([b"a", b"b"])),
        "a length beyond the data": ([1], struct.pack("<I", 2**32 - 1)),
        "a length of half": ([1], b"\x07\x00"),
        "a million texts": ([MANY], _bytes_tensor([b"a"] * MANY)),
        "a shape of 2**62": ([2**31, 2**31], _bytes_tensor([b"a"])),
        "a text of 8 MiB": ([1], _bytes_tensor([b"a" * 8 * MIB])),
    }
    for name, (shape, raw) in texts.items():
        request = pb.ModelInferRequest(model_name="story")
        request.inputs.add(name="text_input", datatype="BYTES", shape=shape)
        request.raw_input_contents.append(raw)
        yield f"gRPC {name}", request
    for name, value in {"NaN": float("nan"), "-inf": float("-inf")}.items():
        request = pb.ModelInferRequest(model_name="story")
        request.inputs.add(name="text_input", datatype="BYTES", shape=[1])
        request.raw_input_contents.append(_bytes_tensor([b"a"]))
        request.parameters["temperature"].double_param = value
        yield f"gRPC temperature {name}", request


def _of_tokens() -> Iterator[HostileRequest]:
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
        yield _binary(f"tensorrtllm {name}", "tokens", list((usual | {tensor[0]: tensor}).values()))
    ids, lengths = ("input_ids", "INT32", [1, MANY], bytes(4 * MANY)), (*lengths[:3], struct.pack("<i", MANY))
    yield _binary("tensorrtllm a million tokens", "tokens", [ids, lengths, asked])


def _of_ensembles() -> Iterator[HostileRequest]:
    values = bytes(16 * 4)
    yield _binary("ensemble a shape of 2**62", "three", [("VALUES", "FP32", [2**31, 2**31], values)])
    yield _binary("ensemble a negative shape", "three", [("VALUES", "FP32", [-16], values)])
    yield _binary("ensemble another datatype", "three", [("VALUES", "INT64", [8], values)])
    yield _binary("ensemble an input twice", "three", [("VALUES", "FP32", [16], values)] * 2)
    yield _binary("ensemble too few bytes", "three", [("VALUES", "FP32", [17], values)])
    yield _binary("ensemble no input", "three", [])
    yield _binary("ONNX a batch of 17", "linear", [("VALUES", "FP32", [17, 16], bytes(17 * 64))])
    yield _binary("ONNX another shape", "linear", [("VALUES", "FP32", [1, 15], bytes(60))])
    yield HostileRequest("ensemble deep JSON", "/v2/models/three/infer", b'{"inputs": ' + b"[" * DEEP, allowed=TRITON)
    told = {"NUMBER": [1], "STREAM": [True], "temperature": float("nan")}
    yield HostileRequest("ensemble NaN for its language model", "/v2/models/told/generate_stream", _json(told))


def _of_embeddings() -> Iterator[HostileRequest]:
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
        yield HostileRequest(f"embeddings {name}", path, _json({"model": "encoder", **fields}), allowed=allowed)
    lone = b'{"model": "encoder", "input": "\\ud800"}'
    yield HostileRequest("embeddings half a pair", path, lone, allowed=ANY)
    yield HostileRequest("embeddings invalid UTF-8", path, b'{"model": "encoder", "input": "\xff\xfe"}')
    yield HostileRequest("embeddings deep JSON", path, b'{"model": "encoder", "input": ' + b"[" * DEEP)
    closed = b'{"model": "encoder", "input": ' + b"[" * DEEP + b"]" * DEEP + b"}"
    yield HostileRequest("embeddings deep JSON that is whole", path, closed)
    yield HostileRequest("embeddings no JSON", path, b"\x00" * 1000)
    yield HostileRequest("embeddings an array", path, b"[]")


def _of_rerank() -> Iterator[HostileRequest]:
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
        body = _json({"model": "reranker", "query": "a", **fields})
        yield HostileRequest(f"rerank {name}", "/v1/rerank", body)
    yield HostileRequest("rerank deep JSON", "/v1/rerank", b'{"model": "reranker", "documents": ' + b"[" * DEEP)


def _of_images() -> Iterator[HostileRequest]:
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
        body = _json({"model": "noise", "prompt": "a", **fields})
        yield HostileRequest(f"images {name}", "/v1/images/generations", body)
    deep = b'{"model": "noise", "prompt": ' + b"[" * DEEP
    yield HostileRequest("images deep JSON", "/v1/images/generations", deep)


def _of_audio() -> Iterator[HostileRequest]:
    whole = wave_file(800)
    for name, file in {
        "a header of 4 GB": wave_head(2**32 - 1) + bytes(1000),
        "rate 0": wave_head(1000, rate=0) + bytes(1000),
        "rate 2**32-1": wave_head(1000, rate=2**32 - 1) + bytes(1000),
        "rate 1": wave_head(4 * MIB, rate=1) + bytes(4 * MIB),
        "no channels": wave_head(1000, channels=0) + bytes(1000),
        "65535 channels": wave_head(1000, channels=65535) + bytes(1000),
        "samples of 7 bits": wave_head(1000, bits=7) + bytes(1000),
        "samples of 65528 bits": wave_head(1000, bits=65528) + bytes(1000),
        "an empty file": b"",
        "4 bytes": b"RIFF",
        "no data": whole[:36],
        "a chunk that ends nowhere": whole[:12] + b"LIST" + struct.pack("<I", 2**32 - 1) + bytes(100),
        "many empty chunks": whole[:12] + (b"junk" + bytes(4)) * 500_000,
        "flac cut short": b"fLaC" + b"\x00\x00\x00\x22" + b"\xff" * 20,
        "ogg cut short": b"OggS" + b"\xff" * 100,
        "mp3 of noise": b"\xff\xfb\x90\x00" + b"\xff" * 5000,
        "text": b"no sound " * 1000,
    }.items():
        allowed = ANY if name in ("a header of 4 GB", "samples of 7 bits") else REFUSED
        yield _form(f"audio {name}", file, allowed=allowed)
    for name, fields in {
        "language a megabyte": {"language": "x" * MIB},
        "temperature NaN": {"temperature": "nan"},
        "temperature 1e999": {"temperature": "1e999"},
        "another form of answer": {"response_format": "pdf"},
        "model unknown": {"model": "nobody"},
    }.items():
        yield _form(f"audio {name}", whole, fields)
    path = "/v1/audio/transcriptions"
    yield HostileRequest("audio a form without an end", path, _form("", whole).body[:-20], dict(FORM))
    yield HostileRequest("audio a form without a boundary", path, whole, {"content-type": "multipart/form-data"})
    part = f'--{BOUNDARY}\r\ncontent-disposition: form-data; name="x"\r\n\r\n1\r\n'.encode()
    yield HostileRequest("audio a form of 100000 fields", path, part * 100_000 + b"--edge--\r\n", dict(FORM))
    yield HostileRequest("audio JSON", path, b'{"model": "keypad"}')


def _of_repository() -> Iterator[HostileRequest]:
    """Loads with a configuration that cannot be served."""
    step = {"model_name": "plus", "model_version": -1, "input_map": {"VALUES": "VALUES"}, "output_map": {}}
    tensors = {
        "input": [{"name": "VALUES", "data_type": "TYPE_FP32", "dims": [-1]}],
        "output": [{"name": "SCALED", "data_type": "TYPE_FP32", "dims": [-1]}],
    }

    def chain(count: int) -> list[dict[str, Any]]:
        names = ["VALUES", *(f"t{number}" for number in range(count - 1)), "SCALED"]
        return [
            step | {"input_map": {"VALUES": taken}, "output_map": {"SCALED": given}}
            for taken, given in itertools.pairwise(names)
        ]

    itself = chain(1)[0] | {"model_name": "three"}
    circle = [chain(1)[0] | {"input_map": {"VALUES": "a"}, "output_map": {"SCALED": "b"}}]
    circle.append(chain(1)[0] | {"input_map": {"VALUES": "b"}, "output_map": {"SCALED": "a"}})
    for name, steps in {
        "no steps": [],
        "steps that are text": "plus",
        "a step that is a number": [7],
        "outputs of nobody": [step],
        "itself": [itself],
        "a circle": [*circle, *chain(1)],
        "an unknown model": [chain(1)[0] | {"model_name": "nobody"}],
        "a name that leaves the folder": [chain(1)[0] | {"model_name": "../../etc"}],
        "version 2**70": [chain(1)[0] | {"model_version": 2**70}],
        "version 99": [chain(1)[0] | {"model_version": 99}],
        "a tensor of two steps": [*chain(1), *chain(1)],
        "an input that the model has not": [chain(1)[0] | {"input_map": {"NOBODY": "VALUES"}}],
        "maps that are lists": [chain(1)[0] | {"input_map": ["VALUES"]}],
    }.items():
        config = {"name": "three", "platform": "ensemble", **tensors, "ensemble_scheduling": {"step": steps}}
        yield _load(f"config {name}", "three", json.dumps(config))
    long = {"name": "three", "platform": "ensemble", **tensors, "ensemble_scheduling": {"step": chain(20_000)}}
    yield _load("config 20000 steps", "three", json.dumps(long))
    most = {"name": "three", "platform": "ensemble", **tensors, "ensemble_scheduling": {"step": chain(1000)}}
    yield _load("config 1000 steps", "three", json.dumps(most), allowed=(200,))
    for name, text in {
        "deep": "[" * DEEP,
        "cut short": '{"name": "three"',
        "null": "null",
        "max_batch_size 2**70": json.dumps({"name": "plus", "backend": "python", **tensors, "max_batch_size": 2**70}),
        "dims -7": json.dumps({"name": "plus", "backend": "python", "input": [{"name": "VALUES", "dims": [-7]}]}),
    }.items():
        yield _load(f"config {name}", "plus", text)
    for name in ("cut_onnx", "no_onnx", "cut_json", "deep_json", "odd_json", "list_json", "engine_json"):
        yield HostileRequest(f"load {name}", f"/v2/repository/models/{name}/load", b"")


def wave_head(num_bytes: int, *, rate: int = 8000, channels: int = 1, bits: int = 16) -> bytes:
    """The first 44 bytes of a WAVE file, which say that so many follow."""
    align = channels * bits // 8 % 2**16
    of_format = struct.pack("<HHIIHH", 1, channels, rate, rate * align % 2**32, align, bits)
    size = struct.pack("<I", min(num_bytes + 36, 2**32 - 1))
    return b"RIFF" + size + b"WAVEfmt " + struct.pack("<I", 16) + of_format + b"data" + struct.pack("<I", num_bytes)


def wave_file(num_samples: int) -> bytes:
    file = io.BytesIO()
    with wave.open(file, "wb") as writer:
        writer.setnchannels(1)
        writer.setsampwidth(2)
        writer.setframerate(8000)
        writer.writeframes(bytes(2 * num_samples))
    return file.getvalue()


def _json(value: object) -> bytes:
    return json.dumps(value).encode()


def _bytes_tensor(elements: list[bytes]) -> bytes:
    return b"".join(struct.pack("<I", len(one)) + one for one in elements)


def _binary(name: str, model: str, tensors: list[tuple[str, str, list[int], bytes]]) -> HostileRequest:
    inputs = [
        {"name": of, "datatype": datatype, "shape": shape, "parameters": {"binary_data_size": len(data)}}
        for of, datatype, shape, data in tensors
    ]
    head = _json({"inputs": inputs})
    body = b"".join([head, *(data for *_, data in tensors)])
    allowed = ANY if name in HARMLESS else TRITON
    return HostileRequest(name, f"/v2/models/{model}/infer", body, {HEAD_LENGTH: str(len(head))}, allowed)


def _form(
    name: str, file: bytes, fields: dict[str, str] | None = None, allowed: tuple[int, ...] = REFUSED
) -> HostileRequest:
    parts = []
    for key, value in {"model": "keypad", **(fields or {})}.items():
        parts.append(f'--{BOUNDARY}\r\ncontent-disposition: form-data; name="{key}"\r\n\r\n{value}\r\n'.encode())
    head = f'--{BOUNDARY}\r\ncontent-disposition: form-data; name="file"; filename="a.wav"\r\n\r\n'.encode()
    body = b"".join([*parts, head, file, f"\r\n--{BOUNDARY}--\r\n".encode()])
    return HostileRequest(name, "/v1/audio/transcriptions", body, dict(FORM), allowed)


def _load(name: str, model: str, config: str, allowed: tuple[int, ...] = TRITON) -> HostileRequest:
    body = _json({"parameters": {"config": config}})
    return HostileRequest(name, f"/v2/repository/models/{model}/load", body, allowed=allowed)
