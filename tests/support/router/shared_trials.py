"""One process that tries grammars for all fronts of a test process: each would start its own, which takes a third of a
second of a core."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

from slipstream.router.protocol.grammar import DEFAULT_JSON, JsonStyle
from slipstream.router.protocol.messages import GrammarSpec
from slipstream.router.structured_output.grammar_trial import GrammarTrials, GrammarVerdict


class SharedTrials(GrammarTrials):
    """Has one caller at a time, as a front's own has."""

    def __init__(self) -> None:
        super().__init__()
        self._turn = threading.Lock()

    def verdict(self, grammar: GrammarSpec, style: JsonStyle = DEFAULT_JSON) -> GrammarVerdict:
        with self._turn:
            return super().verdict(grammar, style)


TRIALS = SharedTrials()


@contextmanager
def shared_trials() -> Iterator[None]:
    """Fronts that are made meanwhile have `TRIALS`."""
    with patch("slipstream.router.api.openai.body.structured_output.GrammarTrials", lambda: TRIALS):
        yield
