"""What is counted of requests that are copied to a version without clients."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class MirrorCounts:
    """`percent` of the requests are copied. `num_skipped` should have been, but too many copies were waiting or the
    version could not take them. Answers are compared where both were drawn greedily and came to their end:
    `first_differences` is the sum of the positions (from 0) at which those that are not equal differ first."""

    percent: float
    num_copied: int = 0
    num_skipped: int = 0
    num_failed: int = 0  # copies that ended with an error, or gave no answer where the original did
    num_compared: int = 0
    num_equal: int = 0
    first_differences: int = 0

    @property
    def text(self) -> str:
        """In one line for people."""
        parts = [f"{self.num_copied} requests copied", f"{self.num_failed} failed"]
        if self.num_skipped:
            parts.append(f"{self.num_skipped} skipped")
        if self.num_compared:
            parts.append(f"{self.num_equal} of {self.num_compared} greedy answers equal")
        num_different = self.num_compared - self.num_equal
        if num_different:
            parts.append(f"the others differ from token {self.first_differences / num_different:.0f} on average")
        return ", ".join(parts)
