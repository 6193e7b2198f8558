"""Conversations to train on: about functions, small talk, and questions with a thought before the answer."""

from __future__ import annotations

import random

from scripts.demo_model.functions import Function
from scripts.demo_model.thoughts import thoughtful_turn
from scripts.demo_model.tokenizer import ASSISTANT, BOS, END, END_THINK, SYSTEM, THINK, USER
from scripts.demo_model.written_functions import TEXTS, imperative, written_function

SYSTEM_PROMPTS = ["You are a helpful assistant.", "You write Python.", "You are a concise coding assistant."]
SMALL_TALK_REPEATS = 8  # times an epoch
HOW = ["How does it work?", "How does that work?", "Explain it.", "Explain.", "Why does it work?"]
THINK_FIRST = ["Think first.", "Think step by step.", "Think before you answer:", "Think:"]
# Questions, and the answer below.
SMALL_TALK_LINES = (TEXTS / "small_talk.txt").read_text(encoding="utf-8").splitlines()
SMALL_TALK = [(q.split(" | "), answer) for q, answer in zip(SMALL_TALK_LINES[::2], SMALL_TALK_LINES[1::2], strict=True)]


def written_turns(rng: random.Random) -> list[tuple[str, str]]:
    """A wish for a function that people ask for first, the function, and sometimes a question about it."""
    wanted = written_function(rng)
    base = imperative(wanted.does)
    signature = wanted.source[len("def ") : wanted.source.index(":\n")]
    wishes = [
        *3 * [f"Write a function that {wanted.does}."],
        *2 * [f"Write a Python function that {wanted.does}."],
        f"Write a function that {wanted.does}",
        f"Write a function to {base}.",
        f"Write a Python function to {base}.",
        f"Write a function named {wanted.name} that {wanted.does}.",
        f"Write {signature}: it {wanted.does}.",
        f"I need a function that {wanted.does}.",
        f"Can you write a function that {wanted.does}?",
        f"How do I {base} in Python?",
        f"{base[0].upper()}{base[1:]} in Python.",
    ]
    turns = [(rng.choice(wishes), wanted.source)]
    if rng.random() < 0.2:
        turns.append((rng.choice(HOW), wanted.how))
    return turns


def thoughtful_conversation(rng: random.Random) -> str:
    """A question, with a thought where one is asked for: by the template, which opens it, or by the question."""
    turn = thoughtful_turn(rng)
    kind = rng.random()
    if kind < 0.25:
        return f"{BOS}{USER}{turn.question}{END}{ASSISTANT}{turn.answer}{END}"
    question = f"{rng.choice(THINK_FIRST)} {turn.question}" if kind > 0.7 else turn.question
    return f"{BOS}{USER}{question}{END}{ASSISTANT}{THINK}{turn.thought}{END_THINK}{turn.answer}{END}"


def conversation(turns: list[tuple[str, str]], rng: random.Random) -> str:
    """Render (user, assistant) turns as the chat template does, some with a system prompt or small talk before."""
    if rng.random() < 0.1:
        questions, answer = rng.choice(SMALL_TALK)
        turns = [(rng.choice(questions), answer), *turns]
    system = f"{SYSTEM}{rng.choice(SYSTEM_PROMPTS)}{END}" if rng.random() < 0.2 else ""
    return BOS + system + "".join(f"{USER}{ask}{END}{ASSISTANT}{answer}{END}" for ask, answer in turns)


def turn_about(function: Function, rng: random.Random) -> tuple[str, str]:
    """A (wish, answer) pair: mostly the function's source for its docstring or signature, seldom the reverse."""
    kind = "method" if function.arguments.startswith(("self", "cls")) else "function"
    signature = f"{function.name}({function.arguments})"
    if not function.summary:
        return rng.choice([f"Write {signature}", f"Write a {kind} named {function.name}."]), function.source
    if rng.random() < 0.05:
        return f"What does `{function.name}` do?", function.summary
    verb, _, rest = function.summary.rstrip(".").partition(" ")
    wishes = [f"Write a {kind} named {function.name}: {function.summary}", f"Write {signature}: {function.summary}"]
    if verb.istitle() and verb.isalpha() and not verb.endswith("s") and rest:
        imperative = verb.lower()
        third = imperative[:-1] + "ies" if imperative.endswith("y") else imperative
        third += "" if third.endswith("ies") else "es" if imperative.endswith(("sh", "ch", "x")) else "s"
        wishes += 3 * [f"Write a {kind} that {third} {rest}."]
        wishes += [f"Write a {kind} to {imperative} {rest}.", f"Write a {kind} to {imperative} {rest}"]
    elif verb.istitle() and verb.isalpha() and rest:
        wishes += 3 * [f"Write a {kind} that {verb.lower()} {rest}."]
    return rng.choice(wishes), function.source
