"""The runner for GPUs, its device work done in torch: padding, static inputs and graphs change no token."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from slipstream.router.protocol.messages import EngineRequest
from slipstream.router.protocol.messages.prompt_scores import ScoredToken
from slipstream.workers.config.worker_config import EngineConfig
from slipstream.workers.engine.engine_builder import build_runner, engine_limits
from slipstream.workers.engine.execution.gpu.batch_buckets import batch_buckets, bucket_for
from slipstream.workers.engine.execution.gpu.gpu_runner import GpuRunner
from slipstream.workers.engine.native_engine import NativeEngine
from slipstream.workers.engine.plan.executor import Executor
from slipstream.workers.engine.plan.step_plan import PageSend, SendProgress
from slipstream.workers.models.interface.kv_shape import kv_shape
from slipstream.workers.models.model_loader import load_model
from tests.support.workers.engine_driver import make_request, make_ticket, run, tokens_of
from tests.support.workers.torch_device_ops import Rerunner, TorchDeviceOps

CONFIG = EngineConfig(
    dtype="float32", page_tokens=8, num_pages=96, max_model_len=64, max_num_seqs=6, max_step_tokens=40
)


def requests() -> list[EngineRequest]:
    rng = random.Random(3)
    prompts = [[rng.randrange(256) for _ in range(rng.randint(1, 30))] for _ in range(14)]
    sampling = [{"temperature": 0.0}, {"temperature": 1.0, "seed": 5}, {"temperature": 0.0, "logprobs": 2}]
    return [
        make_request(f"r{i}", prompt, max_tokens=3 + i % 7, ignore_eos=True, **sampling[i % 3])
        for i, prompt in enumerate(prompts)
    ]


class Subject:
    """A runner and what its device was asked to do. The pool starts out as nan."""

    def __init__(self, model_dir: Path, recorder: Rerunner | None = None) -> None:
        self.recorder = recorder or Rerunner()
        self.ops = TorchDeviceOps()
        model = load_model(model_dir, dtype=torch.float32)
        model.decoder.ops = self.ops
        shape = kv_shape(model.config, model.tp, 96, CONFIG.page_tokens)
        self.kv = torch.full(shape, float("nan"))
        self.runner = GpuRunner(
            model,
            self.ops,
            self.kv,
            max_num_seqs=6,
            max_model_len=CONFIG.max_model_len or 0,
            max_step_tokens=CONFIG.max_step_tokens,
            recorder=self.recorder,
        )
        self.limits = engine_limits(model_dir, CONFIG)

    def engine(self) -> NativeEngine:
        return NativeEngine(self.limits, self.runner)


def expected(model_dir: Path) -> list[list[int]]:
    executor: Executor = build_runner(model_dir, CONFIG, 96)
    return tokens_of(NativeEngine(engine_limits(model_dir, CONFIG), executor), *requests())


@pytest.fixture(params=["llama", "qwen3", "mistral", "qwen2_windowed"])
def model_dir(request: pytest.FixtureRequest, tiny_model_dir: Callable[[str], Path]) -> Path:
    return tiny_model_dir(request.param)


def test_recorded_and_padded_steps_give_the_tokens_of_the_plain_runner(model_dir: Path) -> None:
    subject = Subject(model_dir)
    subject.runner.record()
    subject.kv.zero_()  # as it is allocated; recording may have looked at it, and has written nothing
    assert tokens_of(subject.engine(), *requests()) == expected(model_dir)
    assert subject.recorder.num_recorded == len(batch_buckets(6))
    assert subject.recorder.num_replays > 10
    padded = [rows for rows, decodes, _, bound in subject.ops.begun if rows == decodes and bound == 64]
    assert set(padded) <= set(batch_buckets(6))


def test_without_graphs_the_tokens_are_the_same(tiny_model_dir: Callable[[str], Path]) -> None:
    subject = Subject(tiny_model_dir("llama"))
    subject.kv.zero_()
    assert tokens_of(subject.engine(), *requests()) == expected(tiny_model_dir("llama"))
    assert subject.recorder.num_replays == 0


def test_prompts_are_scored_as_by_the_plain_runner(tiny_model_dir: Callable[[str], Path]) -> None:
    def scored(engine: NativeEngine) -> list[tuple[str, int, ScoredToken]]:
        for number, request in enumerate(requests()):
            sampling = request.sampling._replace(prompt_logprobs=2 if number % 3 else None)
            engine.add(request._replace(sampling=sampling))
        found = []
        while engine.has_work:
            engine.step()
            for message in engine.take_prompt_scores():
                first = message.scores.first
                found += [(message.request_id, at, one) for at, one in enumerate(message.scores.tokens(), first)]
        return sorted(found)

    model_dir = tiny_model_dir("llama")
    subject = Subject(model_dir)
    subject.runner.record()
    subject.kv.zero_()
    plain = scored(NativeEngine(engine_limits(model_dir, CONFIG), build_runner(model_dir, CONFIG, 96)))
    on_device = scored(subject.engine())
    assert [one[:2] for one in on_device] == [one[:2] for one in plain]
    logprobs = [[one.logprob for _, _, one in found] for found in (on_device, plain)]
    assert logprobs[0] == pytest.approx(logprobs[1], abs=1e-4)
    assert subject.recorder.num_replays > 0  # of what decodes


def test_recording_leaves_no_trace_in_the_pool(tiny_model_dir: Callable[[str], Path]) -> None:
    subject = Subject(tiny_model_dir("llama"))
    subject.runner.record()
    assert subject.kv.isnan().all()


def test_before_the_first_request_the_longest_step_has_been_computed(tiny_model_dir: Callable[[str], Path]) -> None:
    subject = Subject(tiny_model_dir("llama"))
    subject.runner.record()
    assert max(bound for rows, decodes, _, bound in subject.ops.begun if decodes == 0) == CONFIG.max_step_tokens


def test_what_cannot_be_recorded_runs_kernel_by_kernel_with_a_warning(
    tiny_model_dir: Callable[[str], Path], caplog: pytest.LogCaptureFixture
) -> None:
    subject = Subject(tiny_model_dir("llama"), Rerunner(fails_at=0))
    with caplog.at_level(logging.WARNING):
        subject.runner.record()
    assert "decoding 6 sequences cannot be recorded" in caplog.text
    subject.kv.zero_()
    assert tokens_of(subject.engine(), *requests()) == expected(tiny_model_dir("llama"))
    assert subject.recorder.num_replays == 0


def test_steps_whose_pages_are_sent_report_each_layer(tiny_model_dir: Callable[[str], Path]) -> None:
    class Sink:
        layers: list[int] = []  # noqa: RUF012

        def begin_sends(self, sends: tuple[PageSend, ...]) -> None:
            self.layers.append(-len(sends))

        def layer_done(self, layer: int, progress: tuple[SendProgress, ...]) -> None:
            self.layers.append(layer)

    subject = Subject(tiny_model_dir("llama"))
    subject.runner.record()
    subject.kv.zero_()
    num_replays = subject.recorder.num_replays
    subject.runner.sink = sink = Sink()
    engine = subject.engine()
    engine.add_prefill(make_request("a", [5]), make_ticket(1, 0, 1))  # one token: looks like decoding
    run(engine, check=False)
    assert sink.layers == [-1, 0, 1, 2]
    assert subject.recorder.num_replays == num_replays


@pytest.mark.parametrize("most", [1, 2, 3, 16, 20, 48, 100, 256])
def test_buckets_end_with_the_largest_batch_and_waste_at_most_a_third_of_a_large_one(most: int) -> None:
    buckets = batch_buckets(most)
    assert buckets[0] == 1
    assert buckets[-1] == most
    for n in range(1, most + 1):
        bucket = bucket_for(buckets, n)
        assert bucket is not None
        assert n <= bucket
        assert n < 17 or bucket <= 1.5 * n
    assert bucket_for(buckets, most + 1) is None
