"""The prompts that every model is asked to continue."""

from __future__ import annotations

import random

PAGE_TOKENS = 8
NUM_NEW_TOKENS = 10
MAX_MODEL_LEN = 128
SHARED = 43  # tokens that three prompts begin with: five pages and a part of one
LENGTHS = (70, 61, 64, 33, 95, 5)  # most are longer than two windows; one ends with a page, one is shorter than one


def make_prompts() -> list[list[int]]:
    """Of bytes alone. The first three begin alike; the others have nothing in common."""
    rng = random.Random(7)
    shared = [rng.randrange(256) for _ in range(SHARED)]
    prompts = []
    for number, length in enumerate(LENGTHS):
        own = [rng.randrange(256) for _ in range(length)]
        prompts.append([*shared, *own[SHARED:]] if number < 3 else own)
    return prompts
