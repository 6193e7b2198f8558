"""Runs a general model over a pool, in one process or as a rank of a gloo group:
python general_run.py RANK SIZE RENDEZVOUS_FILE RESULTS_FILE POOL_FILE MODEL_DIR...

A rank computes a prompt in two chunks and then some single tokens; and again the single tokens alone, over the pages
that POOL_FILE has of the whole model.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from slipstream.workers.models.general.describe import describe
from slipstream.workers.models.general.flat_model import FlatModel
from slipstream.workers.models.general.general_loader import load_general
from slipstream.workers.models.interface.kv_shape import kv_shape
from slipstream.workers.models.interface.step_arrays import SequenceSlice
from slipstream.workers.models.interface.step_batch import StepBatch
from slipstream.workers.models.interface.tensor_parallel import TensorParallel

PAGE_TOKENS = 8
PROMPT = [7 * i % 200 for i in range(50)]
CHUNKS = ((0, 30), (30, 41))
SINGLE = tuple((at, at + 1) for at in range(41, 50))
PAGES = np.array([9, 2, 5, 11, 3, 7, 1], np.int32)
NUM_PAGES = 12


@dataclass
class GeneralRun:
    model: FlatModel

    @staticmethod
    def load(model_dir: Path, dtype: torch.dtype, tp: TensorParallel) -> GeneralRun:
        spec, device = describe(model_dir), torch.device("cpu")
        model = load_general(model_dir, spec, dtype=dtype, device=device, page_tokens=PAGE_TOKENS, tp=tp)
        assert isinstance(model, FlatModel)
        return GeneralRun(model)

    def empty_pool(self) -> Tensor:
        num_pages = NUM_PAGES * len(self.model.spec.kv.page_groups.windows)
        return torch.zeros(kv_shape(self.model.spec, self.model.tp, num_pages, PAGE_TOKENS), dtype=self.model.dtype)

    def run(self, pool: Tensor, pieces: tuple[tuple[int, int], ...]) -> Tensor | None:
        """The scores at the end of each piece of PROMPT, on rank 0; None elsewhere."""
        rows = []
        for start, end in pieces:
            pages, *more = (
                (PAGES[: -(-end // PAGE_TOKENS)] + group * NUM_PAGES).tobytes()
                for group in range(len(self.model.spec.kv.page_groups.windows))
            )
            new = SequenceSlice(start, tuple(PROMPT[start:end]), pages, True, tuple(more))
            batch = StepBatch.build([new], PAGE_TOKENS)
            rows.append(self.model.scores(batch, pool))
        present = [row.clone() for row in rows if row is not None]
        return torch.cat(present) if present else None


def main(rank: int, size: int, rendezvous: str, results: str, pool_file: str, model_dirs: list[str]) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=size)
    tp = TensorParallel(rank, size, dist.group.WORLD)
    whole_pools = torch.load(pool_file)
    found = {}
    for model_dir in model_dirs:
        run = GeneralRun.load(Path(model_dir), torch.float32, tp)
        pool = run.empty_pool()
        prefilled = run.run(pool, CHUNKS)
        handed_on = pool.clone()
        taken_over = whole_pools[model_dir].chunk(size, dim=2)[rank].contiguous()
        found[model_dir] = (prefilled, run.run(pool, SINGLE), run.run(taken_over, SINGLE), handed_on)
    torch.save(found, f"{results}.{rank}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:6], sys.argv[6:])
