"""Models that attend in a way of their own, or keep recurrent states, generate what transformers generates: in ragged
and chunked steps, preempted, handed over and moved while they decode."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import CONFIG_MAPPING, AutoModelForCausalLM

from slipstream.workers.config.worker_config import EngineConfig, RoleSettings, WorkerConfig
from slipstream.workers.engine.engine_builder import build_runner, engine_limits
from slipstream.workers.engine.execution.model_runner import ModelRunner
from slipstream.workers.engine.limits.engine_errors import EngineConfigError
from slipstream.workers.engine.native_engine import NativeEngine
from slipstream.workers.engine.plan.step_plan import PageSend, SendProgress
from slipstream.workers.group.rank_parts import rank_parts
from slipstream.workers.models.directory.model_spec import GeneralSpec
from slipstream.workers.models.general import checked_model
from slipstream.workers.models.general.cached.cached_model import CachedModel
from slipstream.workers.models.general.self_check import GeneralModel, SelfCheckError
from slipstream.workers.models.interface.tensor_parallel import TensorParallel
from slipstream.workers.models.spec_reader import read_spec
from tests.support.workers.engine_driver import make_request, make_ticket, owned, tokens_of
from tests.support.workers.general_models import JAMBA

VOCAB_SIZE = 120
NUM_OUTPUT = 10
LENGTHS = (37, 3, 21)
NARROW: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
}
LINEAR: dict[str, Any] = {
    "head_dim": 8,
    "layer_types": ["linear_attention", "full_attention"],
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
}
CONFIGS: dict[str, dict[str, Any]] = {
    "falcon": {"vocab_size": VOCAB_SIZE, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4},
    "falcon alibi": {
        "vocab_size": VOCAB_SIZE,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "alibi": True,
        "multi_query": False,
    },
    "bloom": {"vocab_size": VOCAB_SIZE, "hidden_size": 32, "n_layer": 2, "n_head": 4},
    "gptj": {"vocab_size": VOCAB_SIZE, "n_embd": 32, "n_layer": 2, "n_head": 4, "rotary_dim": 4, "n_positions": 256},
    "mpt": {"vocab_size": VOCAB_SIZE, "d_model": 32, "n_layers": 2, "n_heads": 4, "max_seq_len": 256},
    "mamba2": {
        "vocab_size": VOCAB_SIZE,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "state_size": 8,
        "num_heads": 8,
        "head_dim": 8,
        "n_groups": 2,
        "chunk_size": 16,
    },
    "jamba": {**NARROW, **JAMBA},
    "qwen3_5_text": {**NARROW, **LINEAR},
    "minimax": {  # a cache of its own
        **NARROW,
        "head_dim": 8,
        "layer_types": ["linear_attention", "full_attention"],
        "block_size": 16,
        "num_local_experts": 2,
        "num_experts_per_tok": 1,
    },
    "rwkv": {"vocab_size": VOCAB_SIZE, "hidden_size": 32, "num_hidden_layers": 2},  # a list of states
    "lfm2": {**NARROW, "layer_types": ["conv", "full_attention"], "conv_L_cache": 3},
}
FLAT = {"gpt2": {"vocab_size": VOCAB_SIZE, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 256}}
STATEFUL = ("mamba2", "jamba", "qwen3_5_text", "minimax", "rwkv", "lfm2")
MOVED = ("gptj", "mamba2", "qwen3_5_text")

Made = tuple[Path, list[list[int]], list[list[int]]]  # the model, prompts and what follows them


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Made]:
    known: dict[str, Made] = {}

    def make(name: str) -> Made:
        if name not in known:
            known[name] = _make(name, tmp_path_factory.mktemp(name.replace(" ", "_")))
        return known[name]

    return make


def _make(name: str, model_dir: Path) -> Made:
    torch.manual_seed(3)
    config = CONFIG_MAPPING[name.split()[0]](**(CONFIGS | FLAT)[name], bos_token_id=1, eos_token_id=2, pad_token_id=0)
    model: Any = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    for parameter, weight in model.named_parameters():
        if weight.ndim > 1:  # wide layers behind a narrow embedding: the next token depends on those far back
            torch.nn.init.normal_(weight, std=0.2 if "embed" in parameter or "wte" in parameter else 0.7)
    model.save_pretrained(model_dir)
    model.generation_config.eos_token_id = None
    prompts = [torch.randint(3, VOCAB_SIZE, (length,)).tolist() for length in LENGTHS]
    follows = [
        model.generate(torch.tensor([prompt]), max_new_tokens=NUM_OUTPUT, do_sample=False)[0, len(prompt) :].tolist()
        for prompt in prompts
    ]
    assert len({token for tokens in follows for token in tokens}) > NUM_OUTPUT // 2, "too simple to show a mistake"
    return model_dir, prompts, follows


def _engine(model_dir: Path, **settings: Any) -> tuple[NativeEngine, ModelRunner]:
    config = EngineConfig(
        **{
            "model_impl": "transformers",
            "num_pages": 60,
            "page_tokens": 8,
            "max_model_len": 64,
            "max_step_tokens": 11,
            "num_threads": 1,
            **settings,
        }
    )
    spec = read_spec(model_dir, "transformers")
    limits = engine_limits(model_dir, config, model=spec)
    runner = build_runner(model_dir, config, limits.num_pages, spec=spec)
    return NativeEngine(limits, runner), runner


def _request(name: str, prompt: list[int], output: list[int] | None = None) -> Any:
    return make_request(name, prompt, output or [], max_tokens=NUM_OUTPUT, ignore_eos=True)


@pytest.mark.parametrize("name", CONFIGS)
def test_it_generates_what_transformers_generates(name: str, made: Callable[[str], Made]) -> None:
    model_dir, prompts, follows = made(name)
    engine, runner = _engine(model_dir)
    spec = runner.model.config
    assert isinstance(spec, GeneralSpec)
    assert spec.mode == "cached"
    assert isinstance(runner.model, CachedModel)
    assert (spec.kv.state_bytes > 0) == (name in STATEFUL)
    assert engine.limits.has_states == (name in STATEFUL)
    requests = [_request(str(number), prompt) for number, prompt in enumerate(prompts)]
    assert tokens_of(engine, *requests) == follows
    assert owned(engine) == 0


def test_a_class_that_fails_the_self_check_as_a_flat_batch_runs_with_a_cache(
    made: Callable[[str], Made], monkeypatch: pytest.MonkeyPatch
) -> None:
    model_dir, prompts, follows = made("gpt2")

    def check(general: GeneralModel, expected: Tensor, page_tokens: int) -> None:
        raise SelfCheckError("its scores would be off")

    monkeypatch.setattr(checked_model, "check_scores", check)
    engine, runner = _engine(model_dir)
    assert isinstance(runner.model, CachedModel)
    assert tokens_of(engine, _request("r", prompts[0])) == follows[:1]


@pytest.mark.parametrize("name", STATEFUL)
def test_a_prefix_with_a_kept_state_is_computed_once(name: str, made: Callable[[str], Made]) -> None:
    model_dir, prompts, follows = made(name)
    engine, _ = _engine(model_dir)
    assert tokens_of(engine, _request("first", prompts[0])) == follows[:1]
    computed = engine.stats().total_computed_tokens
    assert tokens_of(engine, _request("again", prompts[0])) == follows[:1]
    num_cached = 32  # of 37 tokens, in blocks of 8
    assert engine.stats().total_prefix_hit_tokens == num_cached
    assert engine.stats().total_computed_tokens - computed == computed - num_cached
    answered = [*prompts[0], *follows[0][:5]]  # the next turn: 42 tokens, of which 40 have been computed
    assert tokens_of(engine, _request("next", answered))[0][:5] == follows[0][5:]
    assert engine.stats().total_prefix_hit_tokens == num_cached + 40
    assert owned(engine) == 0


@pytest.mark.parametrize(("name", "has_cache"), [("jamba", False), ("lfm2", True)])
def test_a_worker_keeps_no_states_where_tokens_behind_one_are_computed_singly(
    name: str, has_cache: bool, made: Callable[[str], Made]
) -> None:
    engine = EngineConfig(model_impl="transformers", num_pages=60, page_tokens=8, max_model_len=64, num_threads=1)
    config = WorkerConfig(
        "d", "decode", "m", str(made(name)[0]), "127.0.0.1", 1, engine=engine, other_role=RoleSettings(64, engine)
    )
    with rank_parts(config, TensorParallel(), lambda outcome: None) as parts:
        assert parts.limits.prefix_caching == has_cache
        assert parts.limits_in_role(config, "prefill").prefix_caching == has_cache


@pytest.mark.parametrize("name", ["bloom", "qwen3_5_text"])
def test_preempted_it_generates_the_same(name: str, made: Callable[[str], Made]) -> None:
    model_dir, prompts, follows = made(name)
    whole, _ = _engine(model_dir)
    of_prompts = [whole.limits.pages_for(len(prompts[number])) for number in (0, 2)]
    num_pages = sum(of_prompts) + 1
    engine, _ = _engine(model_dir, num_pages=num_pages, max_model_len=48)
    requests = [_request(str(number), prompts[number]) for number in (0, 2)]
    assert tokens_of(engine, *requests) == [follows[0], follows[2]]
    assert engine.stats().total_preemptions > 0


class _Sends:
    """A `PageSink` that remembers which pages a prompt is sent with."""

    def __init__(self) -> None:
        self.page_ids: list[int] = []
        self.num_complete: list[int] = []

    def begin_sends(self, sends: tuple[PageSend, ...]) -> None:
        for send in sends:
            self.page_ids = torch.frombuffer(bytearray(send.page_ids), dtype=torch.int32).tolist()

    def layer_done(self, layer: int, progress: tuple[SendProgress, ...]) -> None:
        self.num_complete += [one.num_pages for one in progress]


def _copy(source: Tensor, page_ids: list[int], destination: Tensor, to: list[int]) -> None:
    assert len(page_ids) == len(to)
    destination[:, to] = source[:, page_ids]


@pytest.mark.parametrize("name", MOVED)
def test_handed_over_it_goes_on_as_if_nothing_had_happened(name: str, made: Callable[[str], Made]) -> None:
    model_dir, prompts, follows = made(name)
    (prefill, source), (decode, destination) = _engine(model_dir), _engine(model_dir)
    request, key = _request("r", prompts[0]), ("r", 0)
    reservation = decode.reserve(request)
    assert reservation is not None
    sends = source.sink = _Sends()
    prefill.add_prefill(request, make_ticket(1, reservation.first_page, len(reservation.page_ids)))
    first = [token for _ in range(10) for output in prefill.step() for token in output.token_ids]
    assert first == follows[0][:1]
    assert sends.num_complete[-1] == len(sends.page_ids)
    _copy(source.kv, sends.page_ids, destination.kv, list(reservation.page_ids))
    assert prefill.release(key)
    assert decode.land(key)
    assert decode.start(key, tuple(first))
    rest = [token for _ in range(NUM_OUTPUT) for output in decode.step() for token in output.token_ids]
    assert first + rest == follows[0]
    assert owned(prefill) == owned(decode) == 0


@pytest.mark.parametrize("name", MOVED)
def test_moved_while_it_decodes_it_goes_on_as_if_nothing_had_happened(name: str, made: Callable[[str], Made]) -> None:
    model_dir, prompts, follows = made(name)
    (old, source), (new, destination) = _engine(model_dir), _engine(model_dir)
    key, output = ("r", 0), list[int]()
    old.add(_request("r", prompts[0]))
    while len(output) < 4:
        output += [token for chunk in old.step() for token in chunk.token_ids]
    reservation = new.adopt(_request("r", prompts[0], output), 2)
    assert reservation is not None
    old.migrations.freeze(key)
    ticket = make_ticket(1, reservation.first_page, len(reservation.page_ids))
    sent = old.migrations.begin_send(key, ticket)
    _copy(source.kv, list(sent), destination.kv, list(reservation.page_ids))
    old.migrations.end_send(key)
    assert old.release(key)
    assert new.land(key)
    assert new.start(key, ())
    output += [token for _ in range(NUM_OUTPUT) for chunk in new.step() for token in chunk.token_ids]
    assert output == follows[0]
    assert owned(old) == owned(new) == 0


def test_a_pool_that_does_not_hold_a_state_beside_two_tokens_is_refused(made: Callable[[str], Made]) -> None:
    model_dir, _, _ = made("qwen3_5_text")
    spec = read_spec(model_dir, "transformers")
    with pytest.raises(EngineConfigError, match="num_pages 1 holds 0 tokens"):
        engine_limits(model_dir, EngineConfig(num_pages=1, page_tokens=8), model=spec)


@pytest.mark.parametrize("name", ["mamba2", "qwen3_5_text"])
def test_it_runs_in_another_dtype_than_it_is_stored_in(name: str, made: Callable[[str], Made]) -> None:
    model_dir, prompts, _ = made(name)
    engine, runner = _engine(model_dir, dtype="bfloat16")
    assert runner.model.dtype == torch.bfloat16
    [tokens] = tokens_of(engine, _request("r", prompts[0]))
    assert len(tokens) == NUM_OUTPUT
