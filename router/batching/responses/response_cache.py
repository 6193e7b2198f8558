"""The response cache (`--cache-config local,size=N` and `response_cache { enable: true }`): whole successful responses,
by what was asked."""

from __future__ import annotations

import hashlib
import struct
from collections import OrderedDict
from dataclasses import dataclass, field

from slipstream.router.tensors.infer_request import InferRequest, InferResponse, ParameterValue
from slipstream.router.tensors.model_spec import ModelSpec
from slipstream.router.tensors.tensor import Tensor

ENTRY_BYTES = 512  # of an entry without its tensors, about
DIGEST_BYTES = 20


@dataclass(frozen=True, slots=True)
class CachedResponse:
    """Copies of the outputs, and the parameters."""

    outputs: tuple[Tensor, ...]
    parameters: dict[str, ParameterValue]
    num_bytes: int

    def response_to(self, request: InferRequest, version: str) -> InferResponse:
        """Its outputs may be sent, but not changed."""
        return InferResponse(request.model, version, request.id, list(self.outputs), dict(self.parameters))


def uses_cache(spec: ModelSpec) -> bool:
    """Not the responses of decoupled models and of sequences: they are no function of the request."""
    return spec.uses_response_cache and not spec.is_decoupled and spec.sequence_batching is None


def cache_key(spec: ModelSpec, request: InferRequest) -> bytes:
    """Of model, version, inputs (names, types, shapes, bytes), requested outputs, parameters and tenant."""
    digest = hashlib.blake2b(digest_size=DIGEST_BYTES)
    outputs = [(output.name, output.classification) for output in request.requested]
    parameters = sorted(request.parameters.items())
    _add(digest, repr((spec.name, spec.version, request.tenant, outputs, parameters)).encode())
    for tensor in sorted(request.inputs, key=lambda each: each.name):
        _add(digest, f"{tensor.name}\0{tensor.datatype}\0{tensor.shape}".encode())
        _add(digest, tensor.view)
    return digest.digest()


def _add(digest: hashlib.blake2b, data: bytes | memoryview) -> None:
    """With its length before it, so that no two sequences of pieces are the same text."""
    digest.update(struct.pack("<Q", len(data)))
    digest.update(data)


@dataclass(slots=True)
class ResponseCache:
    """Of all models together. The responses that were not used for longest make room for new ones."""

    max_bytes: int
    num_bytes: int = 0
    num_evictions: int = 0
    _entries: OrderedDict[bytes, CachedResponse] = field(default_factory=OrderedDict)
    _keys_of: dict[tuple[str, str], set[bytes]] = field(default_factory=dict)  # by model and version
    _model_of: dict[bytes, tuple[str, str]] = field(default_factory=dict)

    @classmethod
    def of_size(cls, max_bytes: int) -> ResponseCache | None:
        """None if there is no room for anything."""
        return cls(max_bytes) if max_bytes else None

    def __len__(self) -> int:
        return len(self._entries)

    def lookup(self, key: bytes) -> CachedResponse | None:
        entry = self._entries.get(key)
        if entry is not None:
            self._entries.move_to_end(key)
        return entry

    def insert(self, key: bytes, spec: ModelSpec, response: InferResponse) -> bool:
        """Copies a response. Returns False if it is there already, or larger than the cache."""
        num_bytes = ENTRY_BYTES + sum(output.num_bytes for output in response.outputs)
        if key in self._entries or num_bytes > self.max_bytes:
            return False
        while self.num_bytes + num_bytes > self.max_bytes:
            self._remove(next(iter(self._entries)))
            self.num_evictions += 1
        outputs = [Tensor(each.name, each.datatype, each.shape, bytes(each.view)) for each in response.outputs]
        self._entries[key] = CachedResponse(tuple(outputs), dict(response.parameters), num_bytes)
        self.num_bytes += num_bytes
        model = self._model_of[key] = (spec.name, spec.version)
        self._keys_of.setdefault(model, set()).add(key)
        return True

    def forget(self, model: str, version: str) -> None:
        """A version was unloaded, or replaced: what it has answered may not be what it would answer now."""
        for key in tuple(self._keys_of.get((model, version), ())):
            self._remove(key)

    def _remove(self, key: bytes) -> None:
        self.num_bytes -= self._entries.pop(key).num_bytes
        model = self._model_of.pop(key)
        self._keys_of[model].discard(key)
        if not self._keys_of[model]:
            del self._keys_of[model]
