"""What a file of PyTorch computes: a function of tensors, whose inputs and outputs have places and names."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from slipstream.workers.backends.file_checks import FileTensor

Value = Any  # torch.Tensor, or a list of texts


@dataclass(frozen=True, slots=True)
class ProgramInput:
    """`names` are those by which a configuration may name it. `tensor` is None where the file does not say what it
    takes."""

    names: tuple[str, ...]
    tensor: FileTensor | None = None
    is_text: bool = False  # a list of texts


@dataclass(frozen=True, slots=True)
class TorchProgram:
    """`call` takes the inputs by place (None: not given) and returns the outputs by place, or by name. `inputs` None:
    it takes one dictionary, whatever its names; then `call` gets that. `outputs` has the names of the outputs, None:
    they are known when it has been called. `may_write`: the call may change its inputs."""

    call: Callable[[Any], Sequence[Value] | dict[str, Value]]
    inputs: tuple[ProgramInput, ...] | None
    outputs: tuple[tuple[str, ...], ...] | None
    may_write: bool
