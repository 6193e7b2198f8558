"""Requests whose answers are known: of every shape, and each with the text that an undisturbed run gave."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, replace
from typing import Any

from tests.e2e.streams import GREEDY, MODEL, prompt_of

SENTENCE = "the router sends long prompts to prefill workers and short ones stay where they decode"
WORDS = SENTENCE.split()


@dataclass(frozen=True)
class Job:
    """`fields` of a body without salt and stream. `texts`: what each choice says, once it is known."""

    number: int
    path: str
    fields: dict[str, Any]
    num_choices: int
    texts: tuple[str, ...] = ()

    def body(self, salt: str, stream: bool) -> bytes:
        return json.dumps({"model": MODEL, "cache_salt": salt, "stream": stream, **self.fields}).encode()

    def answered(self, texts: dict[int, str]) -> Job:
        assert texts.keys() == set(range(self.num_choices)), texts.keys()
        return replace(self, texts=tuple(texts[choice] for choice in range(self.num_choices)))


def make_jobs(seed: int, count: int, longest_prompt: int = 600) -> list[Job]:
    """Greedy and drawn, one choice and several, token ids and chats, prompts that stay and prompts that travel."""
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
        if number % 4 == 1:
            text = " ".join(rng.choice(WORDS) for _ in range(rng.choice((5, 30, 120))))
            fields["messages"] = [{"role": "user", "content": text}]
            jobs.append(Job(number, "/v1/chat/completions", fields, num_choices))
            continue
        num_prompt = rng.choice((5, 20, 60, 200, longest_prompt))
        fields["prompt"] = prompt_of(num_prompt, variant=1000 + number)
        jobs.append(Job(number, "/v1/completions", fields, num_choices))
    return jobs
