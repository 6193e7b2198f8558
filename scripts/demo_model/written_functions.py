"""Short functions that people ask for first, composed from families, so that far more of them are seen than written."""

from __future__ import annotations

import random
import textwrap
from dataclasses import dataclass
from pathlib import Path

TEXTS = Path(__file__).parent / "texts"


@dataclass(frozen=True, slots=True)
class WrittenFunction:
    """A function, what it does in the third person ("returns the sum of a list"), and how it works in a sentence."""

    name: str
    does: str
    source: str
    how: str


def function(name: str, arguments: str, does: str, body: str, how: str, rng: random.Random) -> WrittenFunction:
    """With a docstring or, seldom, without."""
    sentence = does[0].upper() + does[1:] + "."
    doc = f'    """{imperative(sentence)}"""\n' if rng.random() < 0.75 else ""
    lines = "\n".join(f"    {line}" for line in body.splitlines())
    return WrittenFunction(name, does, f"def {name}({arguments}):\n{doc}{lines}", how)


def imperative(sentence: str) -> str:
    """`Returns the sum.` becomes `Return the sum.`"""
    verb, _, rest = sentence.partition(" ")
    if verb.endswith("ies"):
        verb = verb[:-3] + "y"
    elif verb.endswith(("shes", "ches", "xes", "sses")):
        verb = verb[:-2]
    elif verb.endswith("s"):
        verb = verb[:-1]
    return f"{verb} {rest}"


# Text of the condition, its expression for `x`, a word for names.
CONDITIONS = (
    ("even", "{x} % 2 == 0", "even"),
    ("odd", "{x} % 2 == 1", "odd"),
    ("positive", "{x} > 0", "positive"),
    ("negative", "{x} < 0", "negative"),
    ("not zero", "{x} != 0", "nonzero"),
)
LIST_NAMES = (("numbers", "number"), ("values", "value"), ("items", "item"))
POWERS = (("squares", "{x} * {x}", "squares"), ("cubes", "{x} ** 3", "cubes"), ("doubles", "2 * {x}", "doubles"))


def condition_of(rng: random.Random) -> tuple[str, str, str]:
    """Text, expression of `x`, word for a name."""
    kind = rng.random()
    if kind < 0.55:
        return rng.choice(CONDITIONS)
    n = rng.choice((2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 20, 50, 100))
    if kind < 0.7:
        return f"divisible by {n}", f"{{x}} % {n} == 0", f"divisible_by_{n}"
    if kind < 0.85:
        return f"greater than {n}", f"{{x}} > {n}", f"greater_than_{n}"
    return f"less than {n}", f"{{x}} < {n}", f"less_than_{n}"


def about_numbers(rng: random.Random) -> WrittenFunction:
    """A list of numbers, a condition and what is done with those that fulfil it."""
    items, item = rng.choice(LIST_NAMES)
    text, expression, word = condition_of(rng)
    test = expression.format(x=item)
    a_list = f"a list of {items}"
    choices = (
        (
            f"keep_{word}",
            f"returns the {items} of a list that are {text}",
            f"return [{item} for {item} in {items} if {test}]",
            f"It keeps each {item} that is {text}.",
        ),
        (
            f"filter_{word}",
            f"filters {a_list} and keeps those that are {text}",
            f"return [{item} for {item} in {items} if {test}]",
            f"It keeps each {item} that is {text}.",
        ),
        (
            f"remove_{word}",
            f"removes the {items} that are {text} from a list",
            f"return [{item} for {item} in {items} if not {test}]",
            f"It keeps each {item} that is not {text}.",
        ),
        (
            f"count_{word}",
            f"counts the {items} in a list that are {text}",
            f"return sum(1 for {item} in {items} if {test})",
            f"It adds one for each {item} that is {text}.",
        ),
        (
            f"sum_{word}",
            f"returns the sum of the {items} in a list that are {text}",
            f"return sum({item} for {item} in {items} if {test})",
            f"It adds each {item} that is {text}.",
        ),
        (
            f"all_{word}",
            f"checks whether all {items} in a list are {text}",
            f"return all({test} for {item} in {items})",
            f"It is true if each {item} is {text}.",
        ),
        (
            f"any_{word}",
            f"checks whether any of the {items} in a list is {text}",
            f"return any({test} for {item} in {items})",
            f"It is true if one {item} is {text}.",
        ),
        (
            f"first_{word}",
            f"returns the first of the {items} in a list that is {text}, or None",
            f"for {item} in {items}:\n    if {test}:\n        return {item}\nreturn None",
            f"It goes through the list and returns the first {item} that is {text}.",
        ),
        (
            f"is_{word}",
            f"checks whether a number is {text}",
            f"return {expression.format(x='number')}",
            f"It is true if the number is {text}.",
        ),
    )
    name, does, body, how = rng.choice(choices)
    return function(name, "number" if name.startswith("is_") else items, does, body, how, rng)


def about_powers(rng: random.Random) -> WrittenFunction:
    items, item = rng.choice(LIST_NAMES)
    text, expression, word = rng.choice(POWERS)
    power = expression.format(x=item)
    choices = (
        (
            word,
            items,
            f"returns the {text} of a list of {items}",
            f"return [{power} for {item} in {items}]",
            f"It computes {power} for each {item}.",
        ),
        (
            f"sum_of_{word}",
            items,
            f"returns the sum of the {text} of a list of {items}",
            f"return sum({power} for {item} in {items})",
            f"It adds {power} for each {item}.",
        ),
        (
            word,
            "n",
            f"returns the {text} of the numbers from 1 to n",
            f"return [{expression.format(x='i')} for i in range(1, n + 1)]",
            f"It computes {expression.format(x='i')} for each i from 1 to n.",
        ),
    )
    return function(*rng.choice(choices), rng)


UNITS = (
    ("celsius", "fahrenheit", "celsius * 9 / 5 + 32"),
    ("fahrenheit", "celsius", "(fahrenheit - 32) * 5 / 9"),
    ("kilometres", "miles", "kilometres / 1.609"),
    ("miles", "kilometres", "miles * 1.609"),
    ("hours", "minutes", "hours * 60"),
    ("minutes", "seconds", "minutes * 60"),
    ("seconds", "minutes", "seconds / 60"),
    ("metres", "centimetres", "metres * 100"),
    ("kilograms", "grams", "kilograms * 1000"),
    ("grams", "kilograms", "grams / 1000"),
    ("days", "hours", "days * 24"),
    ("weeks", "days", "weeks * 7"),
    ("bytes", "kilobytes", "bytes / 1024"),
    ("inches", "centimetres", "inches * 2.54"),
)
SHAPES = (
    ("rectangle", "width, height", "area", "width * height"),
    ("rectangle", "width, height", "perimeter", "2 * (width + height)"),
    ("square", "side", "area", "side * side"),
    ("square", "side", "perimeter", "4 * side"),
    ("circle", "radius", "area", "3.14159 * radius * radius"),
    ("circle", "radius", "circumference", "2 * 3.14159 * radius"),
    ("triangle", "base, height", "area", "base * height / 2"),
    ("cube", "side", "volume", "side ** 3"),
    ("box", "width, height, depth", "volume", "width * height * depth"),
)


def about_units(rng: random.Random) -> WrittenFunction:
    if rng.random() < 0.5:
        source, target, formula = rng.choice(UNITS)
        return function(
            f"{source}_to_{target}",
            source,
            f"converts {source} to {target}",
            f"return {formula}",
            f"It computes {formula}.",
            rng,
        )
    shape, arguments, what, formula = rng.choice(SHAPES)
    return function(
        f"{shape}_{what}",
        arguments,
        f"returns the {what} of a {shape}",
        f"return {formula}",
        f"It computes {formula}.",
        rng,
    )


NUMBER_WORDS = {2: "two", 3: "three", 4: "four"}
OPERATIONS = (
    ("sum", "adds {n} numbers", "add", " + "),
    ("product", "multiplies {n} numbers", "multiply", " * "),
)


def about_arguments(rng: random.Random) -> WrittenFunction:
    num = rng.choice((2, 2, 3, 4))
    names = rng.choice(("a b c d", "x y z w", "first second third fourth")).split()[:num]
    arguments, words = ", ".join(names), NUMBER_WORDS[num]
    if rng.random() < 0.35:
        what, does, name, sign = rng.choice(OPERATIONS)
        return function(
            name, arguments, does.format(n=words), f"return {sign.join(names)}", f"It returns the {what}.", rng
        )
    choices = (
        (("larger", "largest"), "maximum", f"return max({arguments})"),
        (("smaller", "smallest"), "minimum", f"return min({arguments})"),
    )
    (two, more), name, body = rng.choice(choices)
    which = two if num == 2 else more
    if num == 2 and rng.random() < 0.4:
        sign = ">" if two == "larger" else "<"
        body = f"if {names[0]} {sign} {names[1]}:\n    return {names[0]}\nreturn {names[1]}"
    if rng.random() < 0.25:
        body = f"return ({' + '.join(names)}) / {num}"
        return function(
            "average",
            arguments,
            f"returns the average of {words} numbers",
            body,
            f"It adds them and divides by {num}.",
            rng,
        )
    return function(
        name, arguments, f"returns the {which} of {words} numbers", body, f"It returns the {which} one.", rng
    )


@dataclass(frozen=True, slots=True)
class FixedFunction:
    """A function of texts/functions.txt, with several wordings of what it does."""

    name: str
    arguments: str
    does: tuple[str, ...]
    body: str
    how: str

    @classmethod
    def of(cls, text: str) -> FixedFunction:
        """The first line is its head; comments say what it does and, after `How:`, how it works."""
        head, *lines = text.splitlines()
        name, _, arguments = head.removeprefix("def ").removesuffix("):").partition("(")
        comments = [line.removeprefix("# ") for line in lines if line.startswith("#")]
        body = textwrap.dedent("\n".join(line for line in lines if not line.startswith("#")))
        return cls(name, arguments, tuple(comments[:-1]), body, comments[-1].removeprefix("How: "))


FIXED_FUNCTIONS = [FixedFunction.of(text) for text in (TEXTS / "functions.txt").read_text().strip().split("\n\n")]


def well_known(rng: random.Random) -> WrittenFunction:
    fixed = rng.choice(FIXED_FUNCTIONS)
    return function(fixed.name, fixed.arguments, rng.choice(fixed.does), fixed.body, fixed.how, rng)


FAMILIES = (about_numbers, about_powers, about_units, about_arguments, well_known)
WEIGHTS = (0.24, 0.06, 0.1, 0.1, 0.5)


def written_function(rng: random.Random) -> WrittenFunction:
    """One of them, drawn at random."""
    return rng.choices(FAMILIES, WEIGHTS)[0](rng)
