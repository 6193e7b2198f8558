"""Questions with a thought before the answer: small sums, comparisons, and what a function needs."""

from __future__ import annotations

import random
from dataclasses import dataclass

from scripts.demo_model.words import WORDS
from scripts.demo_model.written_functions import written_function


@dataclass(frozen=True, slots=True)
class ThoughtfulTurn:
    question: str
    thought: str
    answer: str


def added(rng: random.Random) -> ThoughtfulTurn:
    a, b = rng.randint(2, 99), rng.randint(2, 99)
    question = rng.choice(("What is {a} + {b}?", "What is {a} plus {b}?", "Add {a} and {b}.")).format(a=a, b=b)
    return ThoughtfulTurn(question, sum_thought(a, b), f"{a} + {b} = {a + b}")


def sum_thought(a: int, b: int) -> str:
    if a < 10 or b < 10:
        return f"{a} + {b} is {a + b}."
    high_a, high_b = a // 10 * 10, b // 10 * 10
    tens, ones = high_a + high_b, a % 10 + b % 10
    parts = f"The tens: {high_a} + {high_b} = {tens}. The ones: {a % 10} + {b % 10} = {ones}."
    return f"{parts} Together: {tens} + {ones} = {a + b}."


def subtracted(rng: random.Random) -> ThoughtfulTurn:
    b, rest = rng.randint(2, 60), rng.randint(1, 39)
    a = b + rest
    question = rng.choice(("What is {a} - {b}?", "What is {a} minus {b}?")).format(a=a, b=b)
    return ThoughtfulTurn(question, f"{b} + {rest} = {a}. So {a} - {b} = {rest}.", f"{a} - {b} = {rest}")


def multiplied(rng: random.Random) -> ThoughtfulTurn:
    a, b = rng.randint(2, 20), rng.randint(2, 9)
    question = rng.choice(("What is {a} * {b}?", "What is {a} times {b}?", "Multiply {a} by {b}.")).format(a=a, b=b)
    if a <= 10:
        thought = f"{a} times {b} is {a * b}."
    else:
        thought = f"10 * {b} = {10 * b}. {a - 10} * {b} = {(a - 10) * b}. Together: {a * b}."
    return ThoughtfulTurn(question, thought, f"{a} * {b} = {a * b}")


def compared(rng: random.Random) -> ThoughtfulTurn:
    a, b = rng.sample(range(1, 1000), 2)
    word, best = rng.choice((("larger", max(a, b)), ("smaller", min(a, b))))
    question = f"Which number is {word}, {a} or {b}?"
    return ThoughtfulTurn(question, f"{max(a, b)} is more than {min(a, b)}.", f"{best} is {word}.")


def parity(rng: random.Random) -> ThoughtfulTurn:
    number = rng.randint(1, 999)
    word = rng.choice(("even", "odd"))
    truth = ("even", "odd")[number % 2]
    thought = f"The last digit of {number} is {number % 10}, which is {truth}."
    return ThoughtfulTurn(f"Is {number} {word}?", thought, f"{'Yes' if word == truth else 'No'}, {number} is {truth}.")


def counted(rng: random.Random) -> ThoughtfulTurn:
    name = rng.choice(WORDS["names"])
    thing = rng.choice((*WORDS["fruits"], *WORDS["things"])) + "s"
    first, more = rng.randint(2, 20), rng.randint(1, 10)
    if rng.random() < 0.5 and first > more:
        question = f"{name} has {first} {thing} and gives {more} away. How many are left?"
        return ThoughtfulTurn(
            question, f"{first} - {more} = {first - more}.", f"{name} has {first - more} {thing} left."
        )
    question = f"{name} has {first} {thing} and gets {more} more. How many are there?"
    return ThoughtfulTurn(question, f"{first} + {more} = {first + more}.", f"{name} has {first + more} {thing}.")


def planned(rng: random.Random) -> ThoughtfulTurn:
    """A function, with what it needs before it."""
    wanted = written_function(rng)
    arguments = wanted.source[wanted.source.index("(") + 1 : wanted.source.index(")")]
    needs = (
        f"It takes {arguments.replace(', ', ' and ', 1) if arguments.count(',') == 1 else arguments}."
        if arguments
        else "It takes nothing."
    )
    return ThoughtfulTurn(
        f"Write a function that {wanted.does}.", f"A function named {wanted.name}. {needs} {wanted.how}", wanted.source
    )


KINDS = (added, subtracted, multiplied, compared, parity, counted, planned)
WEIGHTS = (0.16, 0.1, 0.12, 0.1, 0.1, 0.12, 0.3)


def thoughtful_turn(rng: random.Random) -> ThoughtfulTurn:
    """One of them, drawn at random."""
    return rng.choices(KINDS, WEIGHTS)[0](rng)
