"""What Slipstream 0.1.0 may be sent. It refuses messages with fields that it does not know."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

from slipstream.kv_transfer.api.ticket import HandoffTicket
from slipstream.router.protocol.messages import (
    Adopt,
    EngineRequest,
    Generate,
    Migrate,
    Prefill,
    Reserve,
    RouterMessage,
    SamplingParams,
)

VERSION_OF_0_1_0 = 4
NUM_TICKET_FIELDS = 10
NUM_SAMPLING_FIELDS = 15
NUM_REQUEST_FIELDS = 7


def for_0_1_0(message: RouterMessage) -> RouterMessage:
    """The message without newer fields. What they say is nothing that such a worker does: it has no page groups. A
    request that it cannot serve as meant (see `SamplingParams.beyond_0_1_0`) is sent without room for a single token,
    which it refuses. A grammar of the kind "output" is left out: the output is not constrained then, and read by the
    same parser. An answer with calls is worth more than none."""
    match message:
        case Prefill(ticket=ticket, request=request):
            return message._replace(ticket=_shortened(ticket), request=_known(request))
        case Generate(request=request) | Reserve(request=request):
            return message._replace(request=_known(request))
        case Migrate(ticket=ticket):
            return replace(message, ticket=_shortened(ticket))
        case Adopt(request=request):
            return replace(message, request=_known(request))
        case _:
            return message


def _shortened(ticket: HandoffTicket) -> HandoffTicket:
    return cast(HandoffTicket, tuple(ticket)[:NUM_TICKET_FIELDS])


def _known(request: EngineRequest) -> EngineRequest:
    sampling = request.sampling
    if sampling.beyond_0_1_0:
        sampling = sampling._replace(max_tokens=0)
    if sampling.grammar is not None and sampling.grammar.kind == "output":
        sampling = sampling._replace(grammar=None)
    known = request._replace(sampling=cast(SamplingParams, tuple(sampling)[:NUM_SAMPLING_FIELDS]))
    return cast(EngineRequest, tuple(known)[:NUM_REQUEST_FIELDS])
