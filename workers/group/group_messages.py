"""The messages between rank 0 and the other ranks of a tensor-parallel group, over their control links."""

from __future__ import annotations

from dataclasses import dataclass

from slipstream.kv_transfer.api.ticket import HandoffTicket, PeerId, TransferAddress, TransferKey
from slipstream.router.protocol.messages import RankUsage, Role
from slipstream.workers.engine.plan.step_plan import PageSend, PromptRows, SendProgress, StepPlan
from slipstream.workers.models.interface.step_arrays import PackedArrays
from slipstream.workers.transfers.group_transfers import RankOutcome


@dataclass(frozen=True, slots=True)
class Join:
    """The first message on a control link."""

    rank: int
    secret: str
    pid: int


@dataclass(frozen=True, slots=True)
class RankReady:
    """The rank has loaded its share of the model. Its pool must have as many pages as the leader's."""

    address: TransferAddress
    num_pages: int


@dataclass(frozen=True, slots=True)
class RankFailed:
    """The rank cannot go on and ends."""

    reason: str


@dataclass(frozen=True, slots=True)
class Execute:
    """Compute one step together with the other ranks, and begin its sends."""

    arrays: PackedArrays
    greedy: bool
    sends: tuple[PageSend, ...]
    progress: tuple[SendProgress, ...]
    prompt_rows: tuple[PromptRows, ...] = ()

    @staticmethod
    def of(plan: StepPlan) -> Execute:
        return Execute(plan.arrays.pack(), plan.greedy, plan.sends, plan.progress, plan.prompt_rows)

    @property
    def plan(self) -> StepPlan:
        """The plan of the step. Raises ValueError if the arrays are incomplete."""
        return StepPlan(self.arrays.unpack(), self.greedy, self.sends, self.progress, prompt_rows=self.prompt_rows)


@dataclass(frozen=True, slots=True)
class Expect:
    """Post receives for the ticket's pages into `page_ids`."""

    ticket: HandoffTicket
    page_ids: tuple[int, ...]
    source: PeerId
    source_tp: int


@dataclass(frozen=True, slots=True)
class SendPages:
    """Send these pages, which are complete after the steps so far, for the ticket."""

    ticket: HandoffTicket
    page_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class CancelTransfer:
    transfer: TransferKey


@dataclass(frozen=True, slots=True)
class ForgetPeer:
    peer: PeerId


@dataclass(frozen=True, slots=True)
class ServeAs:
    """The group serves another role from now on."""

    role: Role


@dataclass(frozen=True, slots=True)
class ReturnPages:
    """Return the memory of these pages, which hold nothing, to the system."""

    page_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class BeginEpoch:
    """A new router connection: the group is `worker` from now on."""

    worker: PeerId


@dataclass(frozen=True, slots=True)
class Shutdown:
    """The group ends normally."""


RankMessage = Join | RankReady | RankFailed | RankOutcome | RankUsage
LeaderMessage = (
    Execute | Expect | SendPages | CancelTransfer | ForgetPeer | BeginEpoch | ServeAs | ReturnPages | Shutdown
)
GroupMessage = RankMessage | LeaderMessage
