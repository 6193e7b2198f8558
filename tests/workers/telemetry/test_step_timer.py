"""What a new engine finds out about its steps before the first request."""

from collections.abc import Sequence
from typing import Any

import pytest

from slipstream.router.protocol.messages import StepTime
from slipstream.router.registry.service_times import ServiceTimes
from slipstream.workers.engine.plan.step_plan import SampledTokens, SamplingRow, StepPlan
from slipstream.workers.telemetry.step_timer import PROFILE_S, time_steps
from tests.support.workers.engine_driver import make_limits
from tests.support.workers.fake_executor import FakeExecutor

LARGE = {"num_pages": 600, "page_tokens": 16, "max_model_len": 8192, "max_num_seqs": 32, "max_step_tokens": 2048}


class TimedExecutor:
    """A step takes `base` seconds, so many a token, and so many a pair of a token and one that it attends to; the first
    step of a size takes `cold` times as long."""

    def __init__(self, base: float, by_token: float, by_pair: float, cold: float = 1.0) -> None:
        self.now_s = 0.0
        self.step_s: list[float] = []
        self._times = base, by_token, by_pair
        self._cold = cold
        self._seen: set[tuple[int, ...]] = set()

    def clock(self) -> float:
        return self.now_s

    def execute(self, plan: StepPlan, sampling: Sequence[SamplingRow]) -> SampledTokens:
        arrays, (base, by_token, by_pair) = plan.arrays, self._times
        pairs = int((arrays.positions + 1).sum())
        seconds = base + by_token * arrays.num_tokens + by_pair * pairs
        size = arrays.num_tokens, *arrays.kv_lens.tolist()
        if size not in self._seen:
            self._seen.add(size)
            seconds *= self._cold
        self.step_s.append(seconds)
        self.now_s += seconds
        return SampledTokens([0] * arrays.num_seqs)


def learned(samples: Sequence[StepTime]) -> ServiceTimes:
    times = ServiceTimes()
    for sample in samples:
        times.observe_step(sample)
    return times


@pytest.mark.parametrize(
    "step_times",
    [
        pytest.param((0.02, 1.2e-3, 2e-7), id="slow"),  # 125M parameters on a core
        pytest.param((4e-4, 5e-5, 2e-9), id="fast"),
        pytest.param((5e-3, 3e-6, 1e-10), id="gpu"),
    ],
)
@pytest.mark.parametrize("cold", [1.0, 1.3])
def test_prompts_and_batches_that_nobody_has_seen_are_known(
    step_times: tuple[float, float, float], cold: float
) -> None:
    base, by_token, by_pair = step_times
    executor = TimedExecutor(*step_times, cold=cold)
    times = learned(time_steps(make_limits(**LARGE), executor, executor.clock))
    for num_tokens in (100, 4000, 8000):
        chunks = -(-num_tokens // 2048)
        true_s = base * chunks + by_token * num_tokens + by_pair * num_tokens**2 / 2
        assert times.prefill_s(num_tokens).seconds == pytest.approx(true_s, rel=0.4)
    for num_seqs, context in ((1, 100), (8, 1000), (16, 500)):
        true_s = base + num_seqs * (by_token + by_pair * context)
        assert times.decode_step_s(num_seqs, num_seqs * context).seconds == pytest.approx(true_s, rel=0.5)


def test_a_kernel_that_is_compiled_first_is_no_step() -> None:
    executor = TimedExecutor(5e-3, 3e-6, 1e-10, cold=40.0)
    times = learned(time_steps(make_limits(**LARGE), executor, executor.clock))
    assert times.prefill_s(32).seconds == pytest.approx(5.1e-3, rel=0.2)


@pytest.mark.parametrize("by_token", [1e-4, 3e-3, 0.2, 10.0])
def test_slow_machines_time_less(by_token: float) -> None:
    executor = TimedExecutor(0.0, by_token, 0.0)
    samples = time_steps(make_limits(**LARGE), executor, executor.clock)
    assert samples[0].num_prefill_tokens == 32
    assert sum(executor.step_s) <= PROFILE_S + max(0.5, 2 * samples[0].seconds)


@pytest.mark.parametrize(
    "overrides",
    [
        {"max_model_len": 2},
        {"num_pages": 10, "max_step_tokens": 1},
        {"max_num_seqs": 1},
        {"num_pages": 3, "page_tokens": 4, "max_model_len": 12},
        {},
        LARGE,
    ],
)
def test_no_step_is_larger_than_the_engine(overrides: dict[str, Any]) -> None:
    limits = make_limits(**overrides)
    executor = FakeExecutor(limits.num_pages, limits.page_tokens, limits.vocab_size)
    samples = time_steps(limits, executor)
    assert samples
    for plan in executor.plans:
        arrays = plan.arrays
        assert arrays.num_tokens <= limits.max_step_tokens
        assert arrays.num_seqs <= limits.max_num_seqs
        assert arrays.kv_lens.max() <= limits.max_model_len
        assert 0 <= arrays.slots.min() <= arrays.slots.max() < limits.num_pages * limits.page_tokens
