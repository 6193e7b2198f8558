"""The clients of a world, and what they ask for."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from slipstream.router.dispatch.table.actions import Finish
from slipstream.router.protocol.generation import GenerateRequest, Slo
from slipstream.router.protocol.messages import SamplingParams, pack_ids
from slipstream.router.protocol.messages.prompt_scores import ScoredToken
from tests.support.faults.router_process import RouterProcess
from tests.support.faults.toy_model import VOCAB_SIZE


@dataclass(slots=True)
class Client:
    """One request, and what has come of it."""

    request: GenerateRequest
    router: RouterProcess
    submitted_s: float
    prompt: list[int]
    tokens: list[int] = field(default_factory=list)
    scores: list[ScoredToken] = field(default_factory=list)  # of the prompt
    finish: Finish | None = None
    finished_s: float = 0.0
    has_left: bool = False
    is_orphan: bool = False  # its router died
    is_late: bool = False  # it came when nothing went wrong any more


def random_prompt(rng: random.Random) -> list[int]:
    """Some prompts begin alike, so that caches are hit; the longest leave little room for output."""
    shared = [(7 * position) % VOCAB_SIZE for position in range(rng.choice((0, 0, 16, 30)))]
    own = [rng.randrange(1, VOCAB_SIZE) for _ in range(rng.choice((rng.randint(1, 12), rng.randint(10, 70))))]
    return shared + own


def random_request(rng: random.Random, request_id: str, prompt: list[int], most_tokens: int) -> GenerateRequest:
    max_tokens = rng.randint(1, most_tokens)
    sampling = SamplingParams(
        max_tokens=max_tokens,
        min_tokens=rng.choice((0, 0, rng.randint(0, max_tokens))),
        temperature=rng.choice((0.0, 1.0)),
        seed=rng.randrange(1 << 30),
    )
    return GenerateRequest(
        request_id,
        pack_ids(prompt),
        sampling,
        priority=rng.randint(-1, 1),
        tenant=rng.choice(("", "a", "b")),
        cache_salt=rng.choice(("", "", "salt")),
        slo=Slo(ttft_s=rng.choice((None, 0.05, 1.0)), itl_s=rng.choice((None, 0.01))),
        session=rng.choice(("", "", "s1", "s2")),
        expected_output_tokens=rng.choice((None, rng.randint(1, max_tokens))),
        timeout_s=rng.choice((None, None, None, 0.4, 5.0)),
    )


def about_its_prompt(request: GenerateRequest, number: int) -> GenerateRequest:
    """The request, where it is its turn, with a wish for log-probabilities of its prompt; some want nothing else."""
    if number % 3:
        return request
    sampling = request.sampling._replace(prompt_logprobs=number % 2)
    if number % 4 == 0:
        sampling = sampling._replace(max_tokens=0, min_tokens=0)
    return request._replace(sampling=sampling, expected_output_tokens=None)
