"""Questions whose answer is a JSON object with values that the question has, or a short list."""

from __future__ import annotations

import json
import random
from typing import Any

from scripts.demo_model.words import WORDS

LISTS = {
    "colors": WORDS["colors"],
    "fruits": WORDS["fruits"],
    "animals": WORDS["animals"],
    "cities": WORDS["cities"],
    "names": WORDS["names"],
    "days": WORDS["days"],
    "things": WORDS["things"],
    "jobs": WORDS["jobs"],
}
NUMBERS = {2: "two", 3: "three", 4: "four", 5: "five"}
# Sentences, and the keys that may be asked for; a value may stand in several forms.
SENTENCES = (
    "{name} is {age} years old.",
    "{name} is {age} and lives in {city}.",
    "{name}, {age}, lives in {city} and is a {job}.",
    "{name} is a {job} from {city}.",
    "My name is {name}, I am {age} years old and I live in {city}.",
    "{name} bought {count} {item}s for {price} euros.",
    "The {item} costs {price} euros and is {color}.",
    "{name} has a {color} {item}.",
    "{name} meets {friend} in {city} on {day}.",
    "On {day} {name} flies from {origin} to {destination}.",
    "Order: {count} {item}s, {color}, for {name}.",
)
ASKED = (
    "Give me {keys} as JSON: {sentence}",
    "Extract {keys} as JSON. {sentence}",
    "Answer in JSON with {keys}: {sentence}",
    "{sentence} Give {keys} as JSON.",
    "{sentence} Return JSON with {keys}.",
    "Write {keys} as a JSON object: {sentence}",
)


def json_turn(rng: random.Random) -> tuple[str, str]:
    """Question and answer."""
    kind = rng.random()
    if kind < 0.25:
        return listed(rng)
    if kind < 0.35:
        return profile(rng)
    values = drawn(rng)
    sentence = rng.choice(SENTENCES)
    keys = [key for key in values if f"{{{key}}}" in sentence]
    if len(keys) > 2 and rng.random() < 0.4:
        keys = rng.sample(keys, rng.randint(2, len(keys)))
    elif rng.random() < 0.5:
        rng.shuffle(keys)
    asked = rng.choice(ASKED).format(keys=spoken(keys), sentence=sentence.format(**values))
    return asked, json.dumps({key: values[key] for key in keys}, ensure_ascii=False)


def drawn(rng: random.Random) -> dict[str, Any]:
    name, friend = rng.sample(WORDS["names"], 2)
    origin, destination = rng.sample(WORDS["cities"], 2)
    return {
        "name": name,
        "friend": friend,
        "age": rng.randint(5, 95),
        "city": rng.choice(WORDS["cities"]),
        "job": rng.choice(WORDS["jobs"]),
        "count": rng.randint(2, 20),
        "item": rng.choice(WORDS["things"]),
        "price": rng.randint(1, 200),
        "color": rng.choice(WORDS["colors"]),
        "day": rng.choice(WORDS["days"]),
        "origin": origin,
        "destination": destination,
    }


def spoken(keys: list[str]) -> str:
    return keys[0] if len(keys) == 1 else f"{', '.join(keys[:-1])} and {keys[-1]}"


def listed(rng: random.Random) -> tuple[str, str]:
    key = rng.choice(list(LISTS))
    num = rng.choice(list(NUMBERS))
    word = rng.choice((NUMBERS[num], str(num)))
    asked = rng.choice(
        ("List {n} {k} as JSON.", "Name {n} {k} in JSON.", "Give me {n} {k} as JSON.", "JSON with {n} {k}")
    )
    return asked.format(n=word, k=key), json.dumps({key: rng.sample(LISTS[key], num)})


def profile(rng: random.Random) -> tuple[str, str]:
    values = drawn(rng)
    keys = rng.sample(["name", "age", "city", "job"], rng.randint(2, 4))
    asked = rng.choice(
        ("Invent a person with {k}, as JSON.", "Make up a user with {k} in JSON.", "A JSON object with {k}, please.")
    )
    return asked.format(k=spoken(keys)), json.dumps({key: values[key] for key in keys})
