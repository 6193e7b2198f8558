"""What every rank of a group has: a model runner with its KV pool, and the transfer agent that moves its pages."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Callable, Iterator, Sequence

import torch

from slipstream.kv_transfer.agent import TransferAgent
from slipstream.kv_transfer.ticket import HandoffTicket, PeerId
from slipstream.router.messages import unpack_ids
from slipstream.workers.config import WorkerConfig
from slipstream.workers.engine.build import build_runner, engine_limits
from slipstream.workers.engine.limits import EngineLimits
from slipstream.workers.engine.plan import PageSend, SendProgress
from slipstream.workers.engine.runner import ModelRunner
from slipstream.workers.group_transfers import RankOutcome
from slipstream.workers.models.tensor_parallel import TensorParallel


@dataclasses.dataclass(frozen=True, slots=True)
class RankParts:
    limits: EngineLimits
    runner: ModelRunner
    agent: TransferAgent
