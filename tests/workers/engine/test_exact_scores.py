"""The promise behind "the same answer": with the native kernels a token's scores are the same to the bit, whatever else
is in its step, and whether what precedes it was decoded token by token, computed as a prompt, or cached. So a seeded
answer goes on identically wherever its next token is computed. torch's forms do not promise this."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from slipstream.kernels.cpu.native_library import native_library
from slipstream.router.protocol.messages import EngineRequest, unpack_ids
from slipstream.router.protocol.messages.prompt_scores import ScoredToken
from slipstream.workers.config.worker_config import EngineConfig
from slipstream.workers.engine.engine_builder import build_runner, engine_limits
from slipstream.workers.engine.native_engine import NativeEngine
from tests.support.workers.engine_driver import Generated, make_request, run

DEMO = Path(__file__).parents[3] / "models" / "slipstream-demo"
NUM_PAGES = 256
NUM_TOKENS = 40
PROMPT_LENGTHS = (1, 16, 17, 33, 64, 180)
DRAWN: dict[str, Any] = {"max_tokens": NUM_TOKENS, "temperature": 0.9, "ignore_eos": True, "logprobs": 4}
KINDS: list[dict[str, Any]] = [
    {"dtype": "float32"},
    {"dtype": "float32", "kv_cache_dtype": "fp8"},
    {"dtype": "bfloat16", "quantization": "int8"},
    {"dtype": "bfloat16"},
]

pytestmark = pytest.mark.skipif(native_library() is None, reason="no native kernels")


class Kind:
    """A model in a form of its own, and `answers`: of each request in an engine of its own."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self._settings = {**settings, "device": "cpu", "num_pages": NUM_PAGES}
        self._runner = build_runner(DEMO, EngineConfig(**self._settings), NUM_PAGES)
        self.answers: dict[str, list[Any]] = {}
        for number in range(len(PROMPT_LENGTHS)):
            self.answers |= answers_of(self.engine(), asked(number))

    def engine(self, **limits: Any) -> NativeEngine:
        return NativeEngine(engine_limits(DEMO, EngineConfig(**{**self._settings, **limits})), self._runner)


@pytest.fixture(scope="module", params=KINDS, ids=lambda settings: "-".join(settings.values()))
def kind(request: pytest.FixtureRequest) -> Kind:
    return Kind(request.param)


def asked(number: int, known: tuple[int, ...] = ()) -> EngineRequest:
    rng = random.Random(number)
    prompt = [rng.randrange(9, 4000) for _ in range(PROMPT_LENGTHS[number])]
    return make_request(f"r{number}", prompt, known, seed=7 * number, **DRAWN)


def answers_of(engine: NativeEngine, *requests: EngineRequest) -> dict[str, list[Any]]:
    """Of each request its tokens, each with its log-probability and those of the four best."""
    for request in requests:
        engine.add(request)
    return {name: _pairs(generated) for (name, _), generated in run(engine, check=False).items()}


def _pairs(generated: Generated) -> list[Any]:
    return list(zip(generated.token_ids, generated.logprobs, strict=True))


def test_scores_depend_neither_on_the_batch_nor_on_chunks_nor_on_preemption(kind: Kind) -> None:
    requests = [asked(number) for number in range(len(PROMPT_LENGTHS))]
    for limits in ({"max_num_seqs": 3}, {"max_step_tokens": 24}, {"prefix_caching": False}):
        assert answers_of(kind.engine(**limits), *requests) == kind.answers, limits
    # Just enough pages for the longest, so that the others come and go.
    crowded = kind.engine(num_pages=15, prefix_caching=False)
    assert answers_of(crowded, *requests) == kind.answers
    assert crowded.stats().total_preemptions > 0


def test_an_answer_that_is_resumed_goes_on_with_the_same_scores(kind: Kind) -> None:
    """What its router knew of it is computed as part of the prompt."""
    for num_known, limits in ((1, {}), (14, {"max_step_tokens": 40}), (39, {})):
        rest = {name: tokens[num_known:] for name, tokens in kind.answers.items()}
        resumed = [
            asked(number, tuple(token for token, _ in kind.answers[f"r{number}"][:num_known]))
            for number in range(len(PROMPT_LENGTHS))
        ]
        assert answers_of(kind.engine(**limits), *resumed) == rest, (num_known, limits)


def test_log_probabilities_of_a_prompt_are_those_of_the_same_tokens_generated(kind: Kind) -> None:
    """Answers that become prompts, in steps of several sizes."""
    for limits in ({}, {"max_step_tokens": 40}):
        engine = kind.engine(**limits)
        for number in range(len(PROMPT_LENGTHS)):
            prompt = [*unpack_ids(asked(number).prompt_ids), *(token for token, _ in kind.answers[f"r{number}"])]
            engine.add(make_request(f"r{number}", prompt, max_tokens=0, prompt_logprobs=DRAWN["logprobs"]))
        scored: dict[str, list[ScoredToken]] = {}
        while engine.has_work:
            engine.step()
            for message in engine.take_prompt_scores():
                scored.setdefault(message.request_id, []).extend(message.scores.tokens())
        for name, answer in kind.answers.items():
            found = [(one.logprob, one.top) for one in scored[name][-NUM_TOKENS:]]
            assert found == [(logprob.logprob, logprob.top) for _, logprob in answer], (name, limits)
