"""Requests whose answers are known: of every shape, and each with the text that an undisturbed run gave."""

from __future__ import annotations

import json
import random
import re
from dataclasses import dataclass, replace
from typing import Any

import jsonschema

from tests.support.e2e.streams import GREEDY, MODEL, prompt_of

SENTENCE = "the router sends long prompts to prefill workers and short ones stay where they decode"
WORDS = SENTENCE.split()

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 24},
        "sizes": {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 99999}, "maxItems": 4},
        "kind": {"enum": ["prefill", "decode", "both"]},
    },
    "required": ["name", "sizes", "kind"],
    "additionalProperties": False,
}
REGEX = r"[a-z]{3,12}( [a-z]{2,9}){4,60}\."
MESSAGES, RESPONSES = "/v1/messages", "/v1/responses"
TOOL = "report"
ARGUMENTS: dict[str, Any] = {
    "type": "object",
    "properties": {"why": {"type": "string", "pattern": "^[a-z ]{40,160}$"}, **SCHEMA["properties"]},
    "required": ["why", "kind"],
    "additionalProperties": False,
}
CHOICES = ["it waits in the queue for room", "it was placed on another worker", "it is over"]
TOOL_CALL = 8  # the token with which the demo model begins a call
GRAMMAR = 'start: WORD (", " WORD)+ "."\nWORD: /[a-z_]{1,10}/\n'


@dataclass(frozen=True)
class Job:
    """`fields` of a body without salt and stream. `grammar`: what its text has to fit, json, regex, choice, grammar or
    call. `texts` and `finishes`: what each choice says, and why it ends, once that is known."""

    number: int
    path: str
    fields: dict[str, Any]
    num_choices: int
    grammar: str | None = None
    texts: tuple[str, ...] = ()
    finishes: tuple[str, ...] = ()

    @property
    def kind(self) -> str:
        """In words, for tables."""
        how = "drawn" if self.seed_is_drawn else "seeded" if self.fields["temperature"] else "greedy"
        return f"{self.grammar or 'free'}, {how}"

    @property
    def seed_is_drawn(self) -> bool:
        """Whether the router draws its seed, so that nobody knows its texts beforehand."""
        return bool(self.fields["temperature"]) and "seed" not in self.fields

    def with_seed(self, seed: int) -> Job:
        return replace(self, fields=self.fields | {"seed": seed})

    def body(self, salt: str, stream: bool) -> bytes:
        return json.dumps({"model": MODEL, "cache_salt": salt, "stream": stream, **self.fields}).encode()

    def answered(self, texts: dict[int, str], finishes: dict[int, str]) -> Job:
        assert texts.keys() == finishes.keys() == set(range(self.num_choices)), (texts.keys(), finishes)
        for choice, text in texts.items():
            assert self._fits(text, finishes[choice]), f"job {self.number}: {text!r} does not fit its {self.grammar}"
        known = range(self.num_choices)
        return replace(self, texts=tuple(texts[n] for n in known), finishes=tuple(finishes[n] for n in known))

    def _fits(self, text: str, finish: str) -> bool:
        """An answer that its grammar has ended is whole; another one is only a beginning."""
        if finish == "tool_calls":
            assert self.grammar == "call"
            jsonschema.validate(json.loads(text.removeprefix(TOOL)), ARGUMENTS)
            return text.startswith(TOOL)
        if finish != "stop":
            return True
        match self.grammar:
            case "json":
                jsonschema.validate(json.loads(text), SCHEMA)
                return True
            case "regex":
                return re.fullmatch(REGEX, text) is not None
            case "choice":
                return text in CHOICES
            case "grammar":
                return re.fullmatch(r"[a-z_]{1,10}(, [a-z_]{1,10})+\.", text) is not None
            case "call":
                return False
        return True


def make_jobs(seed: int, count: int, longest_prompt: int = 600) -> list[Job]:
    """Greedy and drawn, with a seed and without, with a grammar and without, one choice and several, token ids and
    chats of three APIs, prompts that stay and prompts that travel."""
    rng = random.Random(seed)
    jobs = []
    for number in range(count):
        fields: dict[str, Any] = dict(GREEDY)
        fields["max_tokens"] = rng.choice((4, 16, 40, 90))
        if number % 3 == 0:  # seeded
            fields |= {"temperature": 0.8, "seed": rng.randrange(1 << 30), "top_p": 0.95}
        num_choices = 1
        if number % 5 == 0:
            num_choices = rng.choice((2, 3))
            fields |= {"n": num_choices, "temperature": 0.9, "seed": rng.randrange(1 << 30)}
            if number % 10 == 5:
                del fields["seed"]
        is_chat = number % 4 == 1
        grammar = rng.choice(("json", "json", "regex", "choice", "grammar")) if number % 7 in (1, 3, 6) else None
        if number % 8 == 1:
            grammar = "call"
        if grammar is not None:
            fields |= _grammar_fields(grammar, is_chat)
            fields["max_tokens"] = rng.choice((16, 90, 90, 160))
        text = " ".join(rng.choice(WORDS) for _ in range(rng.choice((5, 30, 120))))
        if number % 6 == 2 and num_choices == 1 and grammar is None:
            del fields["logit_bias"]  # Anthropic's API has none
            fields |= {"messages": [{"role": "user", "content": text}], "temperature": rng.choice((0, 0.8)), "seed": 5}
            jobs.append(Job(number, MESSAGES, fields, num_choices))
            continue
        if number % 6 == 5 and num_choices == 1 and grammar is None:
            fields["max_output_tokens"] = fields.pop("max_tokens")
            jobs.append(Job(number, RESPONSES, fields | {"input": text}, num_choices))
            continue
        if is_chat:
            fields["messages"] = [{"role": "user", "content": text}]
            jobs.append(Job(number, "/v1/chat/completions", fields, num_choices, grammar))
            continue
        num_prompt = rng.choice((5, 20, 60, 200, longest_prompt))
        fields["prompt"] = prompt_of(num_prompt, variant=1000 + number)
        jobs.append(Job(number, "/v1/completions", fields, num_choices, grammar))
    return jobs


def make_drawn_jobs(seed: int, count: int) -> list[Job]:
    """Mostly several choices with a seed of the router's, long prompts and long answers, so that many are under way,
    and pages, too, when it dies."""
    rng = random.Random(seed)
    jobs = []
    for number in range(count):
        num_prompt, num_choices = rng.choice((40, 90, 200, 400, 700)), rng.choice((1, 2, 2, 3))
        fields: dict[str, Any] = {**GREEDY, "max_tokens": rng.choice((60, 120, 220, 300)), "ignore_eos": True}
        fields["prompt"] = prompt_of(num_prompt, variant=5000 + number)
        if number % 5:
            fields |= {"temperature": rng.choice((0.7, 0.9, 1.0)), "n": num_choices}
        jobs.append(Job(number, "/v1/completions", fields, num_choices if number % 5 else 1))
    return jobs


def _grammar_fields(grammar: str, is_chat: bool) -> dict[str, Any]:
    """OpenAI's form in a chat, vLLM's elsewhere. A call is what the model begins with."""
    match grammar:
        case "call":
            tool = {"type": "function", "function": {"name": TOOL, "parameters": ARGUMENTS}}
            begins = {**GREEDY["logit_bias"], str(TOOL_CALL): 100}
            return {"tools": [tool], "parallel_tool_calls": False, "logit_bias": begins}
        case "json" if is_chat:
            schema = {"name": "answer", "schema": SCHEMA, "strict": True}
            return {"response_format": {"type": "json_schema", "json_schema": schema}}
        case "json":
            return {"structured_outputs": {"json": SCHEMA}}
        case "regex":
            return {"guided_regex": REGEX}
        case "choice":
            return {"structured_outputs": {"choice": CHOICES}}
        case _:
            return {"guided_grammar": GRAMMAR}
