"""Made-up log-probabilities of prompts: a function of two neighbouring tokens alone, so that an answer can be checked
whichever workers computed it."""

from __future__ import annotations

from xxhash import xxh3_64_intdigest

from slipstream.router.protocol.messages import EngineRequest, PromptScores, unpack_ids
from slipstream.router.protocol.messages.prompt_scores import MAX_SCORED_TOKENS, ScoredToken, ScoredTokens

STEP = 0.25  # between log-probabilities; float32 holds its multiples as they are
NUM_STEPS = 64


def scored_token(before: int, token_id: int, num_top: int, vocab_size: int) -> ScoredToken:
    """The log-probability of `token_id` behind `before`. It is the best token for every fourth pair."""
    drawn = xxh3_64_intdigest(f"{before} {token_id}".encode())
    rank = 1 + drawn % 4
    logprob = -STEP * (1 + (drawn >> 8) % NUM_STEPS) - STEP * num_top
    others = [(token_id + distance) % vocab_size for distance in range(1, num_top + 1)]
    best = [token_id, *others] if rank == 1 else others
    first = logprob + STEP * (0 if rank == 1 else num_top)
    return ScoredToken(logprob, rank, tuple((one, first - STEP * at) for at, one in enumerate(best[:num_top])))


def prompt_scores(request: EngineRequest, vocab_size: int) -> list[PromptScores]:
    """Those that a request wants; none if it does not."""
    num_top = request.sampling.prompt_logprobs
    if num_top is None:
        return []
    tokens = unpack_ids(request.prompt_ids)
    messages = []
    for first in range(1 + request.num_scored, len(tokens), MAX_SCORED_TOKENS):
        numbers = range(first, min(first + MAX_SCORED_TOKENS, len(tokens)))
        scored = [scored_token(tokens[at - 1], tokens[at], num_top, vocab_size) for at in numbers]
        scores = ScoredTokens.of(first, scored, num_top)
        messages.append(PromptScores(request.request_id, request.attempt, scores))
    return messages
