"""One rank of a gloo group: python tensor_parallel_rank.py RANK SIZE RENDEZVOUS_FILE RESULTS_FILE KINDS MODEL_DIR...

Loads each model, computes a prompt in two chunks and some single tokens, and saves what rank 0 sees of the logits.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import torch.distributed as dist

from slipstream.workers.models.directory.model_config import ModelConfig
from slipstream.workers.models.interface.tensor_parallel import TensorParallel
from tests.support.workers.any_model import EXPERT_PARALLEL, load
from tests.support.workers.paged_run import PagedRun

PROMPT = [7 * i % 256 for i in range(60)]


def run(kind: str, model_dir: str, dtype: torch.dtype, tp: TensorParallel) -> torch.Tensor | None:
    """Logits of all tokens of PROMPT on rank 0, None elsewhere."""
    paged = PagedRun(load(kind, Path(model_dir), dtype, tp))
    parts = [paged.step({"a": PROMPT[:30]}), paged.step({"a": PROMPT[30:50], "b": [1, 2]})]
    parts += [paged.step({"a": [token]}) for token in PROMPT[50:]]
    present = [part[: -2 if i == 1 else None] for i, part in enumerate(parts) if part is not None]
    return torch.cat(present) if present else None


def main(rank: int, size: int, rendezvous: str, results: str, kinds: list[str], model_dirs: list[str]) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=size)
    tp = TensorParallel(rank, size, dist.group.WORLD)
    logits = {
        (kind, model_dir, dtype): run(kind, model_dir, dtype, tp)
        for kind in kinds
        for model_dir in model_dirs
        for dtype in (torch.float32, torch.bfloat16)
        if not kind.endswith(EXPERT_PARALLEL) or ModelConfig.read(model_dir).moe is not None
    }
    torch.save(logits, f"{results}.{rank}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4], sys.argv[5].split(","), sys.argv[6:])
