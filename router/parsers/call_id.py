"""The ids of calls."""

from __future__ import annotations

from collections.abc import Container
from hashlib import blake2b

from slipstream.router.parsers.events import CallBegin

ID_BYTES = 12  # two characters each: OpenAI's ids have 24 behind `call_`


def call_id_of(begin: CallBegin, answer: str, taken: Container[str], prefix: str = "call") -> str:
    """What the model wrote, unless another call has it (`taken`); or else a function of the answer, or choice, and of
    where the call stands in it, so that it is the same after a failure."""
    if begin.call_id and begin.call_id not in taken:
        return begin.call_id
    return f"{prefix}_{blake2b(f'{answer}/{begin.index}'.encode(), digest_size=ID_BYTES).hexdigest()}"
