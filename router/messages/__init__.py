"""What the router and the workers say to each other.

Named tuples, of which there are several a request, and frozen dataclasses; `router.wire` turns them into MessagePack
frames and back. `request`: what is to be computed. `attempts`: a request on its way through the workers.
`moves`: how it goes on elsewhere. `presence`: the workers themselves.

A request may be tried more than once (a worker died, a page arrived broken): `attempt` numbers the tries, and whoever
receives a message of an attempt that is no longer current drops it. `seq` on the messages that spend credits numbers
them per connection; `Credits.ack_seq` names the last one the worker had taken into account when it counted what is
free.
"""

from __future__ import annotations

from slipstream.router.messages.attempts import (
    Cancel,
    Failed,
    FinishReason,
    Generate,
    HandedOff,
    Prefill,
    Reserve,
    Reserved,
    Start,
    StepOutput,
    TokenChunk,
    TokenLogprob,
)
from slipstream.router.messages.moves import Adopt, Copied, Extend, Frozen, Migrate, Resume
from slipstream.router.messages.presence import (
    ROLES,
    BlocksChanged,
    Credits,
    Drain,
    Hello,
    PeerLost,
    Ping,
    Pong,
    Rejected,
    ResyncBlocks,
    Role,
    Stats,
    StepTime,
    StepTimes,
    Welcome,
)
from slipstream.router.messages.request import (
    EngineRequest,
    Guide,
    GuideKind,
    SamplingParams,
    pack_ids,
    unpack_ids,
)

__all__ = [
    "PROTOCOL_VERSION",
    "ROLES",
    "Adopt",
    "BlocksChanged",
    "Cancel",
    "Copied",
    "Credits",
    "Drain",
    "EngineRequest",
    "Extend",
    "Failed",
    "FinishReason",
    "Frozen",
    "Generate",
    "Guide",
    "GuideKind",
    "HandedOff",
    "Hello",
    "Migrate",
    "PeerLost",
    "Ping",
    "Pong",
    "Prefill",
    "Rejected",
    "Reserve",
    "Reserved",
    "Resume",
    "ResyncBlocks",
    "Role",
    "RouterMessage",
    "SamplingParams",
    "Start",
    "Stats",
    "StepOutput",
    "StepTime",
    "StepTimes",
    "TokenChunk",
    "TokenLogprob",
    "Welcome",
    "WorkerMessage",
    "pack_ids",
    "unpack_ids",
]

PROTOCOL_VERSION = 4  # raised when a message changes its fields

WorkerMessage = (
    Hello
    | Credits
    | Reserved
    | StepOutput
    | HandedOff
    | Copied
    | Frozen
    | Failed
    | Stats
    | BlocksChanged
    | StepTimes
    | Pong
)
RouterMessage = (
    Welcome
    | Rejected
    | Generate
    | Reserve
    | Prefill
    | Start
    | Adopt
    | Extend
    | Migrate
    | Resume
    | Cancel
    | PeerLost
    | ResyncBlocks
    | Ping
    | Drain
)
