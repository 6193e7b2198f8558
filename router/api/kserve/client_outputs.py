"""The outputs of a response as its client wants them: classified, or in shared memory of its own."""

from __future__ import annotations

from collections.abc import Sequence

from slipstream.router.api.kserve.classification import classified
from slipstream.router.tensor_memory.client_regions import ClientFile
from slipstream.router.tensors.infer_error import InferError, InferErrorCode
from slipstream.router.tensors.infer_request import InferResponse, RequestedOutput
from slipstream.router.tensors.model_spec import ModelSpec
from slipstream.router.tensors.tensor import RegionSlice, Tensor

NOT_PLACED: frozenset[str] = frozenset()


class ClientOutputs:
    """Of one request to the model of `spec`."""

    __slots__ = ("_classes", "_has_batch", "_labels", "_places")

    def __init__(self, requested: Sequence[RequestedOutput], spec: ModelSpec) -> None:
        self._has_batch = spec.max_batch_size > 0
        self._classes = {output.name: output.classification for output in requested if output.classification}
        self._places = {output.name: output.into for output in requested if output.into is not None}
        self._labels = {output.name: output.labels for output in spec.outputs} if self._classes else {}

    def of(self, response: InferResponse) -> tuple[list[Tensor], frozenset[str]]:
        """The outputs, and the names of those whose bytes are in the client's memory now. Raises InferError."""
        if not self._classes and not self._places:
            return response.outputs, NOT_PLACED
        outputs = []
        placed = set()
        for output in response.outputs:
            num_classes = self._classes.get(output.name)
            place = self._places.get(output.name)
            if num_classes is not None:
                labels = self._labels.get(output.name, ())
                output = classified(output, num_classes, labels, has_batch=self._has_batch)
            elif place is not None:
                _put(output, place)
                placed.add(output.name)
            outputs.append(output)
        return outputs, frozenset(placed)


def _put(output: Tensor, place: RegionSlice) -> None:
    """Copies an output to where the client wants it, unless the instance has written it there."""
    num_bytes = output.num_bytes
    if num_bytes > place.num_bytes:
        raise InferError(
            f"shared memory size specified with the request for output '{output.name}' ({place.num_bytes} bytes) should"
            f" be at least {num_bytes} bytes to hold the results",
            InferErrorCode.INTERNAL,
        )
    data = output.data
    if isinstance(data, RegionSlice) and data.region.key == place.region.key and data.offset == place.offset:
        return
    file = place.region
    assert isinstance(file, ClientFile), "clients name regions of their own"
    invalid = InferError(f"Invalid shared memory region: '{file.key}'", InferErrorCode.INTERNAL)
    if file.num_bytes < place.offset + num_bytes:
        raise invalid
    try:
        file.write(place.offset, output.view)
    except OSError as error:
        raise invalid from error
