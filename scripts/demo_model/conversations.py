"""Conversations to train on: about functions of the corpus, small talk, and functions that everybody tries first."""

from __future__ import annotations

import random

from scripts.demo_model.functions import Function
from scripts.demo_model.tokenizer import ASSISTANT, BOS, END, SYSTEM, USER

SYSTEM_PROMPTS = ["You are a helpful assistant.", "You write Python.", "You are a concise coding assistant."]
SMALL_TALK_REPEATS = 6  # times an epoch
SMALL_TALK_LINES = """
Hello | Hi | Hey there | Good morning | Hello there | hi!
Hello! Which Python function shall I write?
Say hello | Say hello. | Please say hello | Say hi | Greet me
Hello! Nice to meet you.
Say hello in Python | Write hello world | Print hello world in Python
print("Hello, world!")
Who are you? | What are you? | What is your name? | Which model are you? | Introduce yourself.
I am the Slipstream demo model, a very small Llama trained on Python's standard library.
What can you do? | Help | How can you help me? | What are you good at?
I write short Python functions. Try: Write a function that returns the larger of two numbers.
How are you? | How are you doing? | How do you do?
I am fine, thank you. What shall we write?
Thanks | Thank you | Thank you! | Great, thanks.
You are welcome.
Bye | Goodbye | See you | Good night
Goodbye!
What is Slipstream? | Tell me about Slipstream | What does Slipstream do?
Slipstream is a serving cluster for language models. It runs prefill and decode on separate workers.
What is Python? | Tell me about Python | Describe Python.
Python is a programming language. It is easy to read, and its standard library is large.
Are you human? | Are you a person? | Are you an AI?
No, I am a small language model.
Tell me a joke | Make me laugh
Why did the function return early? It had nothing left to yield.
""".strip().splitlines()  # questions, and the answer below
SMALL_TALK = [(q.split(" | "), answer) for q, answer in zip(SMALL_TALK_LINES[::2], SMALL_TALK_LINES[1::2], strict=True)]
FIRST_FUNCTIONS_REPEATS = 4  # times an epoch: the wishes everybody tries first, which no library spells out
FIRST_FUNCTIONS = '''
def add(a, b):
    """Add two numbers."""
    return a + b
def maximum(a, b):
    """Return the larger of two numbers."""
    return a if a > b else b
def reverse_string(text):
    """Reverse a string."""
    return text[::-1]
def is_palindrome(text):
    """Check whether a string is a palindrome."""
    return text == text[::-1]
def is_even(number):
    """Check whether a number is even."""
    return number % 2 == 0
def factorial(n):
    """Compute the factorial of n."""
    return 1 if n <= 1 else n * factorial(n - 1)
def fibonacci(n):
    """Return the first n Fibonacci numbers."""
    a, b, numbers = 0, 1, []
    for _ in range(n):
        numbers.append(a)
        a, b = b, a + b
    return numbers
def is_prime(n):
    """Check whether a number is prime."""
    return n > 1 and all(n % d for d in range(2, int(n ** 0.5) + 1))
def read_file(path):
    """Read a file and return its text."""
    with open(path, encoding="utf-8") as file:
        return file.read()
def count_words(text):
    """Count the words in a string."""
    return len(text.split())
def mean(numbers):
    """Compute the mean of a list of numbers."""
    return sum(numbers) / len(numbers)
def sort_list(items):
    """Sort a list."""
    return sorted(items)
def flatten(lists):
    """Flatten a list of lists."""
    return [item for items in lists for item in items]
def load_json(path):
    """Load a JSON file."""
    with open(path) as file:
        return json.load(file)
'''


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
