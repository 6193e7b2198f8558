"""The engine's log-probabilities of a prompt are those of transformers, each told once, however the prompt was cut into
steps, and what of it was cached or preempted."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM

from slipstream.router.protocol.messages import EngineRequest, TokenChunk
from slipstream.router.protocol.messages.prompt_scores import MAX_SCORED_TOKENS, ScoredToken
from slipstream.workers.config.worker_config import EngineConfig
from slipstream.workers.engine.engine_builder import build_runner, engine_limits
from slipstream.workers.engine.execution.model_runner import ModelRunner
from slipstream.workers.engine.native_engine import NativeEngine
from slipstream.workers.engine.sampling import prompt_scorer
from slipstream.workers.interface.engine import EngineRequestError
from tests.support.workers.engine_driver import make_request, make_ticket
from tests.support.workers.general_models import build_general_model

NUM_PAGES = 64
NUM_TOP = 3
LENGTHS = (1, 2, 17, 33, 60)
SMALL: dict[str, Any] = {"vocab_size": 120, "hidden_size": 32}
CACHED: dict[str, dict[str, Any]] = {  # those with attention of their own, and with states
    "falcon": {**SMALL, "num_hidden_layers": 2, "num_attention_heads": 4},
    "mamba2": {
        **SMALL,
        "num_hidden_layers": 2,
        "state_size": 8,
        "num_heads": 8,
        "head_dim": 8,
        "n_groups": 2,
        "chunk_size": 16,
    },
}


class Scored:
    """A model in an engine of its own, and what transformers says about prompts."""

    def __init__(self, model_dir: Path, **settings: Any) -> None:
        self.model_dir = model_dir
        self._settings = {"dtype": "float32", "num_pages": NUM_PAGES, "max_model_len": 128, **settings}
        self.runner: ModelRunner = build_runner(model_dir, EngineConfig(**self._settings), NUM_PAGES)
        self._model: Any = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32)
        self.prompts = [
            [(length + 7 * at * at) % self._model.config.vocab_size for at in range(length)] for length in LENGTHS
        ]

    def engine(self, **overrides: Any) -> NativeEngine:
        return NativeEngine(engine_limits(self.model_dir, EngineConfig(**{**self._settings, **overrides})), self.runner)

    @torch.inference_mode()
    def expected(self, prompt: list[int]) -> torch.Tensor:
        """[tokens, vocab]: of what follows each token."""
        return torch.log_softmax(self._model(torch.tensor([prompt])).logits[0].float(), dim=-1)

    def check(self, prompt: list[int], found: list[ScoredToken]) -> None:
        expected = self.expected(prompt)
        assert len(found) == len(prompt) - 1
        for row, token_id, scored in zip(expected, prompt[1:], found, strict=False):
            assert scored.logprob == pytest.approx(row[token_id].item(), abs=2e-4)
            better = int((row > row[token_id] + 1e-3).sum())
            assert better < scored.rank <= int((row >= row[token_id] - 1e-3).sum())
            assert [logprob for _, logprob in scored.top] == pytest.approx(row.topk(NUM_TOP).values.tolist(), abs=2e-4)
            assert [row[one].item() for one, _ in scored.top] == pytest.approx(
                [logprob for _, logprob in scored.top], abs=2e-4
            )


@pytest.fixture(scope="module")
def llama(tiny_model_dir: Callable[[str], Path]) -> Scored:
    return Scored(tiny_model_dir("llama"), page_tokens=8)


def run(engine: NativeEngine, requests: Iterable[EngineRequest]) -> tuple[dict[str, list[ScoredToken]], dict[str, Any]]:
    """What was said of each prompt, and the last chunk of each request."""
    for request in requests:
        engine.add(request)
    return finish(engine)


def finish(engine: NativeEngine) -> tuple[dict[str, list[ScoredToken]], dict[str, Any]]:
    scores: dict[str, list[ScoredToken]] = {}
    ends: dict[str, Any] = {}
    while engine.has_work:
        outputs: list[TokenChunk] = engine.step()
        for message in engine.take_prompt_scores():
            assert message.request_id not in ends, "log-probabilities behind the first token"
            so_far = scores.setdefault(message.request_id, [])
            assert message.scores.first == len(so_far) + 1
            assert not message.scores.flaw
            assert message.scores.num_tokens <= MAX_SCORED_TOKENS
            so_far += message.scores.tokens()
        ends |= {output.request_id: output for output in outputs}
        engine.check_integrity()
    return scores, ends


def asked(prompts: list[list[int]], **sampling: Any) -> list[EngineRequest]:
    fields = {"prompt_logprobs": NUM_TOP, "max_tokens": 2, **sampling}
    return [make_request(f"r{number}", prompt, **fields) for number, prompt in enumerate(prompts)]


def check_all(scored: Scored, engine: NativeEngine) -> None:
    scores, ends = run(engine, asked(scored.prompts))
    assert all(ends[f"r{number}"].finish_reason for number in range(len(LENGTHS)))
    for number, prompt in enumerate(scored.prompts):
        scored.check(prompt, scores.get(f"r{number}", []))


@pytest.mark.parametrize(
    ("family", "settings"), [("llama", {}), ("llama", {"cpu_kernels": "torch"}), ("gemma2", {}), ("gpt_oss", {})]
)
def test_native_families_score_prompts_as_transformers_does(
    family: str, settings: dict[str, Any], tiny_model_dir: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    scored = Scored(tiny_model_dir(family), page_tokens=8, **settings)
    check_all(scored, scored.engine())
    # Chunks of prompts, the rows of which go through the output layer a few at a time.
    monkeypatch.setattr(prompt_scorer, "BLOCK_BYTES", 5 * 4 * 256)
    check_all(scored, scored.engine(max_step_tokens=24, max_num_seqs=3))


@pytest.mark.parametrize("kind", ["phi3", *CACHED])
def test_models_that_transformers_computes_score_prompts_as_it_does(kind: str, tmp_path: Path) -> None:
    if kind in CACHED:
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(CONFIG_MAPPING[kind](**CACHED[kind]), dtype=torch.float32)
        for parameter in model.parameters():
            if parameter.dim() > 1:
                torch.nn.init.normal_(parameter, std=0.15)
        model.save_pretrained(tmp_path)
    else:
        build_general_model(kind, tmp_path)
    scored = Scored(tmp_path)
    check_all(scored, scored.engine())
    engine = scored.engine(max_step_tokens=24)
    check_all(scored, engine)
    assert engine.limits.max_scored_tokens is not None


def test_a_step_scores_no_more_prompt_tokens_than_it_may(llama: Scored) -> None:
    engine = llama.engine()
    object.__setattr__(engine.limits, "max_scored_tokens", 16)
    scores, _ = run(engine, asked(llama.prompts[-1:]))
    assert engine.stats().total_steps >= 60 // 16 + 1
    llama.check(llama.prompts[-1], scores["r0"])


def test_what_is_to_be_scored_is_not_read_from_the_prefix_cache_and_goes_there(llama: Scored) -> None:
    engine, prompt = llama.engine(), llama.prompts[-1]
    for number, num_cached in enumerate((0, 0)):
        scores, ends = run(engine, [make_request(f"s{number}", prompt, max_tokens=1, prompt_logprobs=0)])
        assert ends[f"s{number}"].num_cached_tokens == num_cached
        assert len(scores[f"s{number}"]) == len(prompt) - 1
    _, ends = run(engine, [make_request("plain", prompt, max_tokens=1)])
    assert ends["plain"].num_cached_tokens == len(prompt) // 8 * 8


def test_an_attempt_goes_on_from_what_is_known_of_the_prompt(llama: Scored) -> None:
    """After a worker's death: what is known is read from the prefix cache, and not told again."""
    engine, prompt = llama.engine(), llama.prompts[-1]
    [whole] = run(engine, asked([prompt]))[0].values()
    for num_scored, num_cached in ((20, 16), (59, 56)):
        request = make_request(f"again{num_scored}", prompt, max_tokens=1, prompt_logprobs=NUM_TOP)
        engine.add(request._replace(num_scored=num_scored))
        told: list[ScoredToken] = []
        while engine.has_work:
            outputs = engine.step()
            for message in engine.take_prompt_scores():
                assert message.scores.first == num_scored + 1 + len(told)
                told += message.scores.tokens()
        assert outputs[-1].num_cached_tokens == num_cached
        assert [one.rank for one in told] == [one.rank for one in whole[num_scored:]]
        assert [one.logprob for one in told] == pytest.approx([one.logprob for one in whole[num_scored:]], abs=1e-5)


def test_preempted_sequences_tell_each_log_probability_once(llama: Scored) -> None:
    engine = llama.engine(num_pages=18, max_step_tokens=24)
    prompts = [llama.prompts[-1], llama.prompts[-1][:50], llama.prompts[-2]]
    scores, ends = run(engine, asked(prompts, max_tokens=40, ignore_eos=True))
    assert engine.stats().total_preemptions > 0
    assert [ends[f"r{number}"].finish_reason for number in range(3)] == ["length"] * 3
    for number, prompt in enumerate(prompts):
        llama.check(prompt, scores[f"r{number}"])


def test_a_request_without_output_ends_with_its_prompt(llama: Scored) -> None:
    engine = llama.engine()
    scores, ends = run(engine, asked(llama.prompts, max_tokens=0))
    for number, prompt in enumerate(llama.prompts):
        llama.check(prompt, scores.get(f"r{number}", []))
        end = ends[f"r{number}"]
        assert (end.index, end.token_ids, end.finish_reason) == (0, (), "length")
    assert engine.stats().total_sampled_tokens == 0


def test_a_prefill_group_tells_them_and_the_decode_worker_does_not(llama: Scored) -> None:
    prompt = llama.prompts[-1]
    [request] = asked([prompt], max_tokens=4, ignore_eos=True)
    group, decode = llama.engine(), llama.engine(num_pages=17)
    reservation = decode.reserve(request)
    assert reservation is not None
    group.add_prefill(request, make_ticket(1, reservation.first_page, len(reservation.page_ids)))
    scores, ends = finish(group)
    llama.check(prompt, scores["r0"])
    decode.start(("r0", 0), ends["r0"].token_ids)
    decode.land(("r0", 0))
    assert finish(decode)[0] == {}


def test_a_reservation_with_cached_pages_that_is_computed_here_after_all_tells_all(llama: Scored) -> None:
    engine, prompt = llama.engine(), llama.prompts[-1]
    run(engine, [make_request("before", prompt, max_tokens=1)])
    [request] = asked([prompt])
    reservation = engine.reserve(request)
    assert reservation is not None
    assert reservation.num_cached_tokens == 56
    scores, _ = run(engine, [request])
    llama.check(prompt, scores["r0"])


def test_scores_that_are_no_numbers_end_the_request_with_an_error(
    llama: Scored, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = llama.engine(max_step_tokens=24)
    logits_of = llama.runner.model.logits  # type: ignore[attr-defined]
    monkeypatch.setattr(llama.runner.model, "logits", lambda hidden: logits_of(hidden).mul(float("nan")))
    scores, ends = run(engine, asked(llama.prompts[1:]))
    assert not scores
    assert {end.finish_reason for end in ends.values()} == {"error"}


@pytest.mark.parametrize(
    ("fields", "named"), [({"prompt_logprobs": -1}, "prompt_logprobs"), ({"max_tokens": -1}, "max_tokens")]
)
def test_a_request_that_asks_for_nonsense_is_refused(fields: dict[str, Any], named: str, llama: Scored) -> None:
    with pytest.raises(EngineRequestError, match=named):
        llama.engine().add(make_request("r", [1, 2, 3], **fields))
