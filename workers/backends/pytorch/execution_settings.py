"""How PyTorch computes a model: the parameters of its configuration."""

from __future__ import annotations

import logging
from dataclasses import dataclass

import torch

from slipstream.workers.backends.backend import ModelContext
from slipstream.workers.backends.model_settings import default_threads, truth, whole_number

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ExecutionSettings:
    """`device` None: where the file has the model. Thread counts are those of this process."""

    device: torch.device | None
    num_threads: int
    num_interop_threads: int
    inference_mode: bool = True
    optimized_execution: bool = True
    cleans_cache: bool = False
    cudnn: bool = True
    jit_executor: bool | None = None  # None: as PyTorch has it
    jit_profiling: bool | None = None
    tensor_fuser: bool | None = None

    @classmethod
    def of(cls, model: ModelContext) -> ExecutionSettings:
        """Raises BackendError for a parameter that makes no sense."""

        def on(name: str, default: bool) -> bool:
            return truth(model, name, model.parameters.get(name), default)

        def said(name: str) -> bool | None:
            return on(name, False) if model.parameters.get(name) else None

        def threads(*names: str) -> int:
            counts = (whole_number(model, name, model.parameters.get(name)) for name in names)
            return next((count for count in counts if count > 0), default_threads(model))

        return cls(
            device=device_of(model),
            num_threads=threads("INTRA_OP_THREAD_COUNT", "NUM_THREADS"),
            num_interop_threads=threads("INTER_OP_THREAD_COUNT", "NUM_INTEROP_THREADS"),
            inference_mode=on("INFERENCE_MODE", True),
            optimized_execution=not on("DISABLE_OPTIMIZED_EXECUTION", False),
            cleans_cache=on("ENABLE_CACHE_CLEANING", False),
            cudnn=not on("DISABLE_CUDNN", False),
            jit_executor=said("ENABLE_JIT_EXECUTOR"),
            jit_profiling=said("ENABLE_JIT_PROFILING"),
            tensor_fuser=said("ENABLE_TENSOR_FUSER"),
        )

    def apply(self) -> None:
        """To this process, which has one model only."""
        torch.set_num_threads(self.num_threads)
        self._set_interop_threads()
        torch.backends.cudnn.enabled = self.cudnn
        for switch, value in (
            (torch._C._jit_set_profiling_executor, self.jit_executor),
            (torch._C._jit_set_profiling_mode, self.jit_profiling),
            (torch._C._jit_set_texpr_fuser_enabled, self.tensor_fuser),
        ):
            if value is not None:
                switch(value)

    def _set_interop_threads(self) -> None:
        """PyTorch takes the number only before it has first computed something in parallel."""
        num_threads = torch.get_num_interop_threads()
        if num_threads == self.num_interop_threads:
            return
        try:
            torch.set_num_interop_threads(self.num_interop_threads)
        except RuntimeError:
            log.warning("%d threads between operators stay, instead of %d", num_threads, self.num_interop_threads)


def device_of(model: ModelContext) -> torch.device | None:
    if model.kind == "MODEL":
        return None
    return torch.device("cuda", model.device) if model.kind == "GPU" else torch.device("cpu")
