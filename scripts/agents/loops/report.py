"""Loops by name, and the lines that a program prints of them."""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Callable, Mapping

# From the base URL of the API to a sentence about what was seen. Raises whatever goes wrong.
Loop = Callable[[str], str]

ONE = "What is the weather in Paris?"
TWO = "Compare Paris and Rome"
LETTER = "Write a long letter"


def weather(city: str) -> str:
    """What the tool says."""
    return f"sunny in {city}"


def saw(*, asked: list[str], answer: object, city: str = "Paris", is_either: bool = False) -> str:
    """`city` is the one that the last result is of; with two tools at once, a client may send `is_either` last. Raises
    AssertionError if the tool was not asked for the cities, or if the answer does not use what it said."""
    cities = ["Paris", "Rome"] if city == "Rome" else ["Paris"]
    assert sorted(asked) == cities, f"the tool was asked for {asked}"
    answers = [f"It is sunny in {one}." for one in (cities if is_either else [city])]
    assert answer in answers, f"the answer is {answer!r}"
    calls = ", ".join(f"get_weather({city})" for city in cities)
    return f"{calls}; {answer!r}"


def run(loops: Mapping[str, Loop]) -> None:
    """Runs all loops and prints a line for each."""
    for name, loop in loops.items():
        try:
            line = {"loop": name, "saw": loop(sys.argv[1])}
        except Exception as error:  # any failure of a client is a line of the table
            traceback.print_exc()
            line = {"loop": name, "failed": f"{type(error).__name__}: {error}"}
        print(json.dumps(line), flush=True)
