"""One request and its answer, as seen by the client."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class ClientAnswer:
    """Times are in seconds of one clock; 0 if the moment did not come. A read that contains text is a moment at which
    tokens arrived. Its tokens are assumed to be evenly spread over the time since the read before: `gaps` has pairs of
    that time and the number of chunks that share it. Numbers of tokens are those of the server's usage, None if it
    sends none. `kind` classifies an error for counting, `error` describes it in one sentence; both are empty for a good
    answer."""

    begun_s: float
    due_s: float | None = None  # when it should have begun, at a given rate
    status: int = 0
    first_s: float = 0.0
    latest_s: float = 0.0
    ended_s: float = 0.0
    gaps: list[tuple[float, int]] = field(default_factory=list)
    longest_gap_s: float = 0.0  # with `steady_gap_s`, all that is kept of the gaps if there are many requests
    steady_gap_s: float | None = None
    num_chunks: int = 0
    num_prompt_tokens: int | None = None
    num_cached_tokens: int | None = None
    num_output_tokens: int | None = None
    wanted_tokens: int | None = None
    model: str = ""  # that was asked for
    text: str = ""
    retry_after_s: float | None = None  # what a server that refused has asked for
    kind: str = ""
    error: str = ""

    @property
    def is_good(self) -> bool:
        return not self.kind

    @property
    def num_tokens(self) -> int:
        """The number of output tokens; if the server does not count, that of chunks with text."""
        return self.num_chunks if self.num_output_tokens is None else self.num_output_tokens

    @property
    def ttft_s(self) -> float | None:
        return self.first_s - self.begun_s if self.first_s else None

    @property
    def latency_s(self) -> float:
        """Seconds to the last token, or to the end of an answer that came in one piece."""
        return (self.latest_s or self.ended_s) - self.begun_s

    @property
    def itl_s(self) -> float | None:
        """(latency - TTFT) / (OSL - 1)."""
        if not self.first_s or self.num_tokens < 2:
            return None
        return (self.latest_s - self.first_s) / (self.num_tokens - 1)

    def summarise_gaps(self) -> None:
        """Replaces the gaps by the longest one and by the mean time from token to token in the later half of the
        stream, when the hand-off and the prompts that came at the same time are done. (The mean is None for short
        answers.)"""
        self.longest_gap_s = max((gap_s for gap_s, _ in self.gaps), default=0.0)
        steady = self.gaps[len(self.gaps) // 2 :] if len(self.gaps) > 1 else []
        num_tokens = sum(count for _, count in steady)
        self.steady_gap_s = sum(gap_s for gap_s, _ in steady) / num_tokens if num_tokens else None
        self.gaps = []

    def fail(self, kind: str, error: str = "") -> None:
        """Notes a failure. Only the first one counts, as others follow from it."""
        if not self.kind:
            self.kind, self.error = kind, error or kind
