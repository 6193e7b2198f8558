"""Bounds the time of one rendering: a template is a program that runs on the client's data."""

from __future__ import annotations

from jinja2 import TemplateError

# Of one rendering: about half a second of a core, which holds up all requests of its process. (A template that looks
# through all messages for each of them takes as many for a chat of a thousand.)
MAX_STEPS = 1_000_000
CALL_STEPS = 3  # a call takes as long as so many iterations of an empty loop
STEPS = "steps left"  # the variable that counts them, with a name that no template can have for one of its own


class StepsLeft:
    """Counts the steps of one rendering."""

    __slots__ = ("left",)

    def __init__(self) -> None:
        self.left = MAX_STEPS

    def take(self, num_steps: int) -> None:
        """Raises TemplateError if there are not so many."""
        self.left -= num_steps
        if self.left < 0:
            raise TemplateError(f"its loops and calls take more than {MAX_STEPS:,} steps")
