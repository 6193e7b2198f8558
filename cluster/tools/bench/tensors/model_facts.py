"""What a benchmark needs to know about a tensor model, from its configuration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from slipstream.cluster.tools.bench.client.bench_target import BenchError
from slipstream.router.tensors.datatypes import BY_CONFIG_NAME


@dataclass(frozen=True, slots=True)
class InputFact:
    """`dims` are without the batch dimension; -1: may vary."""

    name: str
    datatype: str
    dims: tuple[int, ...]
    is_optional: bool = False


@dataclass(frozen=True, slots=True)
class TensorModelFacts:
    """`steps` are the models of an ensemble."""

    name: str
    inputs: Sequence[InputFact]
    max_batch_size: int = 0
    is_decoupled: bool = False
    has_sequences: bool = False
    steps: Sequence[str] = ()

    @classmethod
    def of_config(cls, config: Mapping[str, Any]) -> TensorModelFacts:
        """From the configuration as JSON; 64-bit integers may be texts. Raises BenchError."""
        steps = config.get("ensemble_scheduling", {}).get("step", ())
        return cls(
            name=config["name"],
            inputs=[input_fact(one) for one in config.get("input", ())],
            max_batch_size=int(config.get("max_batch_size", 0)),
            is_decoupled=bool(config.get("model_transaction_policy", {}).get("decoupled")),
            has_sequences="sequence_batching" in config,
            steps=list(dict.fromkeys(step["model_name"] for step in steps)),
        )


def input_fact(fields: Mapping[str, Any]) -> InputFact:
    datatype = BY_CONFIG_NAME.get(fields.get("data_type", ""))
    if datatype is None:
        raise BenchError(f"input {fields.get('name')}: data_type {fields.get('data_type')} is unknown")
    dims = tuple(int(size) for size in fields.get("dims", ()))
    return InputFact(fields["name"], datatype.name, dims, bool(fields.get("optional")))
