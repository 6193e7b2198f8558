"""What a worker tells its router of itself when it connects."""

from __future__ import annotations

import os
from dataclasses import dataclass

from slipstream.kv_transfer.api.ticket import PeerId, TransferAddress
from slipstream.router.protocol.messages import (
    OLDEST_PROTOCOL_VERSION,
    PROTOCOL_VERSION,
    Build,
    Hello,
    PageLayout,
)
from slipstream.router.protocol.messages import Role as RoleName
from slipstream.workers.config.worker_config import WorkerConfig
from slipstream.workers.engine.native_engine import NativeEngine


@dataclass(frozen=True, slots=True)
class WorkerGreeting:
    """What stays the same over all roles and connections. `addresses` are those of the transfer agents of all ranks."""

    config: WorkerConfig
    build: Build
    layout: PageLayout
    addresses: tuple[TransferAddress, ...]

    def hello(self, worker: PeerId, role: RoleName, engine: NativeEngine) -> Hello:
        """The first message of a connection. The limits of `engine` are those of the role."""
        limits = engine.limits
        return Hello(
            version=PROTOCOL_VERSION,
            token=self.config.token,
            worker=worker,
            role=role,
            model=self.config.model,
            tp=self.config.tp,
            pid=os.getpid(),
            addresses=self.addresses,
            page_tokens=limits.page_tokens,
            num_pages=limits.num_pages,
            max_slots=limits.max_slots,
            max_queued_tokens=limits.max_queued_tokens,
            max_model_len=limits.max_model_len,
            max_step_tokens=limits.max_step_tokens,
            prefix_caching=limits.prefix_caching,
            model_version=self.config.model_version,
            oldest_version=OLDEST_PROTOCOL_VERSION,
            build=self.build,
            layout=self.layout,
            page_limit=engine.page_use().num_held if engine.has_elastic_pages else None,
            reserves_output=limits.reserves_output and role == "decode",
            keeps_states=limits.has_states,
            block_tokens=limits.state_block_tokens or 0,
            group_pages=() if limits.windows == (None,) else tuple(most or 0 for most in limits.most_blocks),
            state_pages=limits.state_pages,
            end_token_ids=tuple([token_id for token_id in limits.eos_token_ids if token_id < limits.vocab_size]),
            logits_processors=tuple(sorted(self.config.engine.logits_processors)),
        )
