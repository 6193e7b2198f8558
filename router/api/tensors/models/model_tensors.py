"""The tensors of a model by the roles that an endpoint gives them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from slipstream.router.api.tensors.models.endpoint_errors import misconfigured
from slipstream.router.tensors.model_spec import ModelSpec, TensorSpec

TEXT = "BYTES"
NUMBERS = frozenset({"FP16", "BF16", "FP32", "FP64"})
WHOLE = frozenset({"INT8", "INT16", "INT32", "INT64", "UINT8", "UINT16", "UINT32", "UINT64"})


@dataclass(frozen=True, slots=True)
class ModelTensors:
    """Of one model. `configured` are the names that the endpoint gives to inputs, by role. Raises HttpError 500 where
    the configuration does not fit the model."""

    endpoint: str
    spec: ModelSpec
    configured: Mapping[str, str]

    def input_of(self, role: str, known_as: Sequence[str] = ()) -> TensorSpec | None:
        """The input of a role: the one that the configuration names, or the first that is known by the name of the role
        or one of the others, in any case of letters."""
        name = self.configured.get(role)
        if name is not None:
            return self.named(name, self.spec.inputs, "input")
        by_name = {tensor.name.lower(): tensor for tensor in self.spec.inputs}
        return next((by_name[one] for one in (role, *known_as) if one in by_name), None)

    def text_input(self, role: str, known_as: Sequence[str] = ()) -> TensorSpec:
        """That of a text: if none has a known name, the only input of BYTES that a request must have."""
        found = self.input_of(role, known_as)
        if found is None:
            texts = [one for one in self.spec.inputs if one.datatype == TEXT and not one.is_optional]
            if len(texts) != 1:
                have = self._listed(self.spec.inputs)
                raise misconfigured(self.endpoint, f"inputs.{role} must name one of the model's inputs: {have}")
            found = texts[0]
        if found.datatype != TEXT:
            raise misconfigured(self.endpoint, f"inputs.{role}, {found.name!r}, must be BYTES, not {found.datatype}")
        return found

    def output(
        self, name: str, datatypes: frozenset[str], known_as: Sequence[str] = (), key: str = "output"
    ) -> TensorSpec:
        """The one of this name, or else the first of known names, or else the only one of these datatypes."""
        if name:
            return self.named(name, self.spec.outputs, "output")
        by_name = {tensor.name.lower(): tensor for tensor in self.spec.outputs}
        known = next((by_name[one] for one in known_as if one in by_name), None)
        if known is not None:
            return known
        fitting = [one for one in self.spec.outputs if one.datatype in datatypes]
        if len(fitting) != 1:
            have = self._listed(self.spec.outputs)
            raise misconfigured(self.endpoint, f"{key} must name one of the model's outputs: {have}")
        return fitting[0]

    def named(self, name: str, tensors: Iterable[TensorSpec], kind: str) -> TensorSpec:
        for tensor in tensors:
            if tensor.name == name:
                return tensor
        have = self._listed(self.spec.inputs if kind == "input" else self.spec.outputs)
        raise misconfigured(self.endpoint, f"the model {self.spec.name!r} has no {kind} {name!r}; it has {have}")

    @staticmethod
    def _listed(tensors: Iterable[TensorSpec]) -> str:
        return ", ".join(f"{one.name} ({one.datatype} {list(one.dims)})" for one in tensors) or "none"
