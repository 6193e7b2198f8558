"""The text of one choice as it grows: detokenises, watches for stop strings, and keeps log-probabilities in step."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from slipstream.router.api.generation.answer.output import TokenEntry
from slipstream.router.protocol.generation import Delta
from slipstream.router.text.detokenizer import Detokenizer, PieceTable
from slipstream.router.text.stop_strings import StopMatcher


class OutputText:
    """`num_tokens` counts the tokens generated up to the stop, visible or not. `stopped` is set once a stop string was
    found. The text of the first `min_tokens` tokens cannot complete a stop string, as in vLLM since #22014."""

    __slots__ = (
        "_detokenizer",
        "_min_tokens",
        "_num_produced",
        "_num_released",
        "_stops",
        "held",
        "num_tokens",
        "stopped",
    )

    has_calls = False  # text is not read
    call_names: Sequence[str] = ()
    num_reasoning_tokens: int | None = None

    def __init__(self, pieces: PieceTable, stops: Sequence[str], include_stop: bool, min_tokens: int = 0) -> None:
        self._detokenizer = Detokenizer(pieces)
        self._min_tokens = min_tokens
        self._stops = StopMatcher(stops, include_stop) if stops else None
        self.held: deque[TokenEntry] = deque()  # not released yet, because a stop string may begin in their text
        self._num_produced = 0  # characters out of the detokenizer
        self._num_released = 0  # of these, the characters that the stop matcher has released
        self.num_tokens = 0
        self.stopped = False

    @property
    def stop_string(self) -> str | None:
        """The one that was found."""
        return self._stops.matched if self._stops is not None else None

    def add(self, delta: Delta, hides_last: bool = False) -> str:
        """The text that became certain with `delta`. With `hides_last`, its last token ended the output: it counts but
        is not visible."""
        text = ""
        for token_id, logprob in delta[:-1] if hides_last else delta:
            self.num_tokens += 1
            piece = self._detokenizer.add(token_id)
            if logprob is not None:
                self.held.append(TokenEntry(token_id, logprob, self._num_produced))
            self._num_produced += len(piece)
            if self._stops is None:
                text += piece
                continue
            text += self._stops.add(piece, self.num_tokens <= self._min_tokens)
            if self._stops.matched is not None:
                self.stopped = True
                break
        else:
            self.num_tokens += hides_last
        self._num_released += len(text)
        return text

    def finish(self) -> str:
        """End the output. Returns the text that was still held back."""
        if self.stopped:
            return ""
        text = self._detokenizer.finish()
        if self._stops is not None:
            text = self._stops.add(text, self.num_tokens <= self._min_tokens)
            self.stopped = self._stops.matched is not None
            if not self.stopped:
                text += self._stops.finish()
        self._num_produced = self._num_released = self._num_released + len(text)
        return text

    def take_logprobs(self) -> list[TokenEntry]:
        """The entries of the tokens whose text has been released since the last call. Tokens after a stop have none."""
        if not self.held:
            return []
        if not self.stopped and (self._stops is None or not self._stops.num_held):
            entries = list(self.held)
            self.held.clear()
            return entries
        taken = []
        while self.held and self.held[0].offset < self._num_released:
            taken.append(self.held.popleft())
        return taken

    def joined(self, parts: list[str]) -> str:
        """All parts of an output as one."""
        return "".join(parts)
