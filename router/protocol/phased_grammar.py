"""What a worker has to follow where only a part of the output has a grammar: the `spec` of a `GrammarSpec` of the kind
"output", as JSON.

An output goes through phases. In a free phase (reasoning, content before a call) the model writes what it likes; a
phase with a grammar (calls, an answer that follows a schema) is followed token by token, to the end of the output. A
trigger ends a phase and begins another one:

    reasoning --</think>--> content --<tool_call>--> calls (grammar)

A phase with a grammar begins with the trigger's own text, so that the grammar decides on tokens that go beyond the
trigger's end. Which phase an output is in is a function of its tokens alone, so that it goes on alike on another worker
and after a failure.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from slipstream.router.protocol.messages import GrammarSpec


class Trigger(NamedTuple):
    """What ends a phase. `marker` is a sequence of texts and of ids of special tokens. `to` is the number of the phase
    that begins.

    With `at_start` it counts only where nothing but white space precedes it in its phase, and white space within its
    texts makes no difference. In a phase with a grammar a trigger counts only as the very beginning.
    """

    marker: tuple[str | int, ...]
    to: int
    at_start: bool = False


class Phase(NamedTuple):
    """`grammar` is Lark for llguidance, which may hold `%json`, and refer to `content` as `@content`; without one the
    phase is free. `may_end`: whether the output may end in a free phase; another one ends where its grammar does."""

    triggers: tuple[Trigger, ...] = ()
    grammar: str | None = None
    content: GrammarSpec | None = None
    may_end: bool = True


class PhasedGrammar(NamedTuple):
    """An output begins in phase `begin`. `shown_ids` are the special tokens that stand for a marker or a part of one.
    All other special tokens are as if they were not there."""

    phases: tuple[Phase, ...]
    begin: int = 0
    shown_ids: tuple[int, ...] = ()

    def spec(self) -> GrammarSpec:
        """The form in which it is sent."""
        phases = [[*phase[:2], phase.content, phase.may_end] for phase in self.phases]
        return GrammarSpec("output", json.dumps([phases, self.begin, self.shown_ids], separators=(",", ":")))

    @staticmethod
    def of(spec: str) -> PhasedGrammar:
        """The inverse of `spec`. Raises ValueError if the text is not one."""
        try:
            phases, begin, shown_ids = json.loads(spec)
            read = PhasedGrammar(tuple(map(_phase, phases)), begin, tuple(shown_ids))
            targets = [begin, *(trigger.to for phase in read.phases for trigger in phase.triggers)]
            if not all(0 <= number < len(read.phases) for number in targets):
                raise ValueError("it leads to a phase that it does not have")
        except (TypeError, ValueError) as error:
            raise ValueError(f"no grammar of an output: {error}") from error
        return read


def _phase(fields: list[Any]) -> Phase:
    triggers, grammar, content, may_end = fields
    return Phase(
        tuple(Trigger(tuple(marker), to, at_start) for marker, to, at_start in triggers),
        grammar,
        None if content is None else GrammarSpec(*content),
        may_end,
    )
