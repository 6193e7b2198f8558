"""The answer to an inference request: a JSON head, and after it the bytes of tensors."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from slipstream.router.api.kserve.http.bodies.json_tensors import as_json, data_to_json
from slipstream.router.api.kserve.http.bodies.output_form import OutputForm
from slipstream.router.tensors.infer_request import InferResponse
from slipstream.router.tensors.tensor import Tensor

BINARY, JSON = "application/octet-stream", "application/json"
HEAD_LENGTH = "inference-header-content-length"


@dataclass(frozen=True, slots=True)
class InferAnswer:
    """`parts` of the body, of which the first is the head; the others lie in the memory of the response."""

    parts: list[bytes | memoryview]

    @property
    def content_type(self) -> str:
        return BINARY if len(self.parts) > 1 else JSON

    @property
    def headers(self) -> list[tuple[str, str]]:
        return [(HEAD_LENGTH, str(len(self.parts[0])))] if len(self.parts) > 1 else []

    @property
    def num_bytes(self) -> int:
        return sum([len(part) for part in self.parts])


def infer_answer(
    response: InferResponse, outputs: Sequence[Tensor], placed: Collection[str], form: OutputForm
) -> InferAnswer:
    """`placed` are the outputs that lie in the client's memory already. Raises InferError."""
    head: dict[str, Any] = {"id": response.id} if response.id else {}
    head["model_name"] = response.model
    head["model_version"] = response.model_version
    if response.parameters:
        head["parameters"] = response.parameters
    parts: list[bytes | memoryview] = [b""]
    is_plain = True
    shown: list[dict[str, Any]] = []
    for output in outputs:
        fields: dict[str, Any] = {"name": output.name, "datatype": output.datatype, "shape": output.shape}
        if output.name in placed:
            pass  # nothing of it stands here
        elif form.is_binary_of(output.name):
            view = output.view
            fields["parameters"] = {"binary_data_size": len(view)}
            if view:
                parts.append(view)
        else:
            fields["data"], is_plain_output = data_to_json(output)
            is_plain = is_plain and is_plain_output
        shown.append(fields)
    head["outputs"] = shown
    parts[0] = as_json(head, is_plain=is_plain)
    return InferAnswer(parts)
