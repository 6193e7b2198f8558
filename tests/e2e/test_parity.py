"""Greedy fp32 output of the whole cluster is what transformers says, over many prompt lengths, TP 1 and 2."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.support.e2e.reference import Reference
from tests.support.e2e.serving_cluster import ServingCluster
from tests.support.e2e.streams import MODEL, client_of, complete, prompt_of

NUM_TOKENS = 12
LENGTHS = [1, 2, 3, 5, 8, 13, 15, 16, 17, 21, 31, 32, 33, 34, 40, 47, 48, 49, 55, 63, 64, 65, 72, 79, 80, 81]
LENGTHS += [89, 95, 96, 97, 111, 112, 113, 127, 128, 129, 143, 144, 145, 160, 177, 191, 192, 193, 222, 256]
LENGTHS += [257, 300, 333, 400, 511, 513]


@pytest.fixture(scope="session")
def expected(reference: Reference) -> list[tuple[list[int], str]]:
    """52 prompts and what transformers continues them with."""
    prompts = [prompt_of(length, variant=5000 + length) for length in LENGTHS]
    return [(prompt, reference.text(prompt, NUM_TOKENS)) for prompt in prompts]


def test_52_prompts_one_after_the_other(either_cluster: ServingCluster, expected: list[tuple[list[int], str]]) -> None:
    with client_of(either_cluster) as client:
        texts = [complete(client, prompt, NUM_TOKENS, salt="alone") for prompt, _ in expected]
    assert texts == [text for _, text in expected]


def test_52_prompts_at_once_and_again_from_the_prefix_cache(
    either_cluster: ServingCluster, expected: list[tuple[list[int], str]]
) -> None:
    with client_of(either_cluster) as client, ThreadPoolExecutor(16) as pool:
        for _ in range(2):
            texts = pool.map(lambda case: complete(client, case[0], NUM_TOKENS, salt="together"), expected)
            assert list(texts) == [text for _, text in expected]


@pytest.mark.parametrize(("num_beams", "penalty"), [(2, 0.0), (4, 1.0), (8, 2.0)])
def test_beams(either_cluster: ServingCluster, reference: Reference, num_beams: int, penalty: float) -> None:
    prompt = prompt_of(40, variant=7000 + num_beams)
    asked = {"use_beam_search": True, "length_penalty": penalty, "ignore_eos": True}
    with client_of(either_cluster) as client:
        answer = client.completions.create(
            model=MODEL, prompt=prompt, max_tokens=NUM_TOKENS, n=2, best_of=num_beams, extra_body=asked
        )
    assert [choice.text for choice in answer.choices] == reference.beams(prompt, NUM_TOKENS, num_beams, penalty)[:2]
