"""What a worker builds serves in either role: on a GPU, memory is laid out and steps are recorded for it once."""

from __future__ import annotations

import pytest

from slipstream.workers.config.worker_config import EngineConfig, RoleSettings, WorkerConfig
from slipstream.workers.group.rank_parts import for_both_roles


@pytest.mark.parametrize(("ours", "theirs", "built"), [(512, 4096, 4096), (4096, 512, 4096), (None, 512, None)])
def test_a_worker_is_built_for_the_most_that_either_role_allows(
    ours: int | None, theirs: int | None, built: int | None
) -> None:
    prefill = EngineConfig(max_num_seqs=4, max_step_tokens=2048, max_model_len=ours)
    decode = EngineConfig(max_num_seqs=64, max_step_tokens=256, max_model_len=theirs)
    config = WorkerConfig(
        "w", "prefill", "m", "dir", "127.0.0.1", 1, engine=prefill, other_role=RoleSettings(8192, decode)
    )
    engine = for_both_roles(config)
    assert (engine.max_num_seqs, engine.max_step_tokens, engine.max_model_len) == (64, 2048, built)
