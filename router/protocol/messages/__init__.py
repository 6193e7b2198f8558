"""The messages between the router and the workers.

    request     what is to be computed
    attempts    a request on its way through the workers
    migration   a running sequence that moves to another decode worker
    presence    the workers themselves
    attempt_traces   what workers did for requests that are traced

Messages that occur several times per request are named tuples, the others frozen dataclasses; `protocol.wire` turns
them into MessagePack frames and back.

A request may be tried more than once (because a worker died, or a page arrived broken). `attempt` numbers the tries,
and a message about an attempt that is no longer current is dropped. `seq` numbers the messages that spend credits, per
connection; `Credits.ack_seq` is the last one that the worker had taken into account when it counted what is free.
"""

from __future__ import annotations

from slipstream.router.protocol.messages.attempt_traces import AttemptWork, TraceAttempt, WorkEvent, WorkSpan
from slipstream.router.protocol.messages.attempts import (
    Cancel,
    Failed,
    FaultKind,
    FinishReason,
    Generate,
    HandedOff,
    Prefill,
    PromptScores,
    Reserve,
    Reserved,
    Retain,
    Start,
    StepOutput,
    TokenChunk,
    TokenLogprob,
)
from slipstream.router.protocol.messages.migration import Adopt, Copied, Extend, Frozen, Migrate, Resume
from slipstream.router.protocol.messages.presence import (
    ROLES,
    STEP_SEQUENCES,
    STEP_TOKENS,
    BlocksChanged,
    Build,
    Credits,
    Drain,
    GpuUsage,
    Hello,
    PageLayout,
    PageLimit,
    PagesHeld,
    PeerLost,
    Ping,
    Pong,
    Postponed,
    RankUsage,
    Rejected,
    ResyncBlocks,
    Role,
    ServiceLevel,
    Stats,
    StepBuckets,
    StepTime,
    StepTimes,
    Welcome,
)
from slipstream.router.protocol.messages.request import (
    EngineRequest,
    GrammarKind,
    GrammarSpec,
    ProcessorCall,
    RetentionHint,
    SamplingParams,
    pack_ids,
    unpack_ids,
)

__all__ = [
    "OLDEST_PROTOCOL_VERSION",
    "PROTOCOL_VERSION",
    "ROLES",
    "STEP_SEQUENCES",
    "STEP_TOKENS",
    "Adopt",
    "AttemptWork",
    "BlocksChanged",
    "Build",
    "Cancel",
    "Copied",
    "Credits",
    "Drain",
    "EngineRequest",
    "Extend",
    "Failed",
    "FaultKind",
    "FinishReason",
    "Frozen",
    "Generate",
    "GpuUsage",
    "GrammarKind",
    "GrammarSpec",
    "HandedOff",
    "Hello",
    "Migrate",
    "PageLayout",
    "PageLimit",
    "PagesHeld",
    "PeerLost",
    "Ping",
    "Pong",
    "Postponed",
    "Prefill",
    "ProcessorCall",
    "PromptScores",
    "RankUsage",
    "Rejected",
    "Reserve",
    "Reserved",
    "Resume",
    "ResyncBlocks",
    "Retain",
    "RetentionHint",
    "Role",
    "RouterMessage",
    "SamplingParams",
    "ServiceLevel",
    "Start",
    "Stats",
    "StepBuckets",
    "StepOutput",
    "StepTime",
    "StepTimes",
    "TokenChunk",
    "TokenLogprob",
    "TraceAttempt",
    "Welcome",
    "WorkEvent",
    "WorkSpan",
    "WorkerMessage",
    "pack_ids",
    "unpack_ids",
]

# Two programs of different versions may be connected while a cluster is upgraded. Therefore:
# - a new field comes last and has a default that means what was before it; older receivers leave it out. Every such
#   change raises PROTOCOL_VERSION, so that a sender knows the version of its peer;
# - a new kind of message has a new code; older receivers leave it out;
# - a change that older peers must not ignore, or could not read, raises OLDEST_PROTOCOL_VERSION as well: workers below
#   it are refused by name.
# A release understands at least the one before it. Recorded frames of released versions are in
# tests/router/protocol/frames.
PROTOCOL_VERSION = 8
OLDEST_PROTOCOL_VERSION = 4  # Slipstream 0.1.0. It accepts only exactly its own fields, so it gets no new ones.

WorkerMessage = (
    Hello
    | Credits
    | Reserved
    | StepOutput
    | PromptScores
    | HandedOff
    | Copied
    | Frozen
    | Failed
    | Stats
    | BlocksChanged
    | StepTimes
    | PagesHeld
    | AttemptWork
    | Pong
)
RouterMessage = (
    Welcome
    | Rejected
    | Postponed
    | Generate
    | Reserve
    | Prefill
    | Start
    | Adopt
    | Extend
    | Migrate
    | Resume
    | Cancel
    | Retain
    | PeerLost
    | ResyncBlocks
    | Ping
    | Drain
    | PageLimit
    | ServiceLevel
    | TraceAttempt
)
