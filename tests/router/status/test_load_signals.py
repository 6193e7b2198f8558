"""What the router counts for a planner: windows, levels, refusals, bursts."""

from __future__ import annotations

import random

import pytest

from slipstream.router.config.router_config import DispatchConfig, SloConfig
from slipstream.router.protocol.generation import GenerateRequest, GenerationError, QueueFullError, Slo
from slipstream.router.protocol.messages import Credits, SamplingParams
from slipstream.router.status.signal_window import COARSE_S, LATEST_S, LONG_S, SHORT_S, Binned, SignalWindow
from tests.support.router.dispatcher_lab import D, Lab


def test_quantiles_are_within_five_percent_and_means_exact() -> None:
    rng, binned = random.Random(3), Binned()
    values = sorted(rng.lognormvariate(-2.0, 1.5) for _ in range(5000))
    for value in values:
        binned.add(value)
    spread = binned.spread()
    assert spread.mean == pytest.approx(sum(values) / len(values))
    for quantile, share in ((spread.p50, 0.5), (spread.p90, 0.9), (spread.p99, 0.99), (spread.points[0], 0.05)):
        assert quantile == pytest.approx(values[int(share * len(values))], rel=0.06)


def test_windows_forget_and_cost_no_more_memory_for_more_requests() -> None:
    window = SignalWindow()
    for second in range(LONG_S * 2):
        for number in range(3 if second < LONG_S else 0):
            window.arrived(0, 100, 0.5, 0.05, second + number / 4)
    now = float(LONG_S * 2)
    assert window.short(now).num_arrivals == 0
    assert window.long(now).num_arrivals <= 3 * COARSE_S
    assert len(window._fine) == SHORT_S
    assert len(window._coarse) == LONG_S // COARSE_S


def test_a_rate_is_over_the_time_that_was_seen() -> None:
    window = SignalWindow()
    for number in range(40):
        window.arrived(0, 100, 0.5, 0.05, 100.0 + number * 0.1)
    short = window.short(104.0)
    assert short.span_s == pytest.approx(4.0)
    assert short.offered_per_s == pytest.approx(10.0)


def test_the_latest_seconds_are_told_apart_from_those_before() -> None:
    window = SignalWindow()
    for number in range(100):
        window.arrived(0, 1000 if number < 80 else 100, 0.5, 0.05, 100.0 + number * 0.1)
    latest = window.latest(110.0)
    assert latest.span_s == pytest.approx(LATEST_S)
    assert (latest.num_arrivals, window.short(110.0).num_arrivals) == (10 * LATEST_S, 100)
    assert latest.isl.mean == pytest.approx((2 * 100 + (LATEST_S - 2) * 1000) / LATEST_S)


@pytest.mark.parametrize(("is_bursty", "low", "high"), [(False, 0.0, 0.1), (True, 4.0, 12.0)])
def test_bursts_are_told_from_an_even_stream_and_a_trend_is_no_burst(is_bursty: bool, low: float, high: float) -> None:
    window, rng = SignalWindow(), random.Random(1)
    for second in range(200):
        num = (rng.random() < 0.25) * 16 if is_bursty else second // 20
        for _ in range(num):
            window.arrived(0, 100, 0.5, 0.05, second + 0.5)
    assert low <= window.long(200.0).burstiness <= high


def test_requests_are_counted_against_levels_of_their_own_or_the_clusters() -> None:
    lab = Lab(DispatchConfig(slo=SloConfig(ttft_ms=100.0, itl_ms=50.0), local_prefill_max_tokens=1000))
    lab.join(D, "decode")
    lab.now = 1.0
    lab.submit("strict", max_tokens=3, slo=Slo(0.05, 0.05))
    lab.submit("plain", max_tokens=3)
    for name in ("strict", "plain"):
        lab.now = 1.08
        lab.chunk(D, name, 0, 7, cached=2)
        lab.now = 1.10
        lab.chunk(D, name, 1, 8, 9, finish="length", cached=2)
    short = lab.dispatcher.signals(1.2).short
    (one,) = short.classes
    assert (one.num_arrivals, one.num_first, one.num_finished) == (2, 2, 2)
    assert (one.num_ttft_met, one.num_itl_met, one.num_good) == (1, 2, 1)
    assert (one.ttft_slo_s, short.attainment, short.cached_share) == (pytest.approx(0.075), 0.5, 0.4)
    assert short.osl.mean == 3.0
    assert short.itl_s.mean == pytest.approx(0.01)


@pytest.mark.parametrize("ignore_eos", [False, True])
def test_an_answer_of_prescribed_length_is_foreseen(ignore_eos: bool) -> None:
    lab = Lab(DispatchConfig(local_prefill_max_tokens=1000))
    lab.join(D, "decode")
    lab.do(lab.dispatcher.submit(GenerateRequest("r", [7] * 5, SamplingParams(400, ignore_eos=ignore_eos)), 0.0))
    assert (lab.dispatcher.signals(1.0).short.expected_osl == 400.0) == ignore_eos


def test_what_load_turned_away_is_offered_load_and_what_waits_is_told() -> None:
    lab = Lab(DispatchConfig(max_queued_requests=1))
    lab.now = 1.0
    lab.submit("first", priority=2)
    with pytest.raises(QueueFullError):
        lab.submit("second")
    signals = lab.dispatcher.signals(2.0)
    assert (signals.short.num_arrivals, signals.short.num_refused) == (1, 1)
    assert signals.short.offered_per_s == pytest.approx(2.0)
    assert (signals.num_waiting, signals.oldest_wait_s) == (1, 1.0)
    assert [one.priority for one in signals.short.classes] == [2]


def test_an_end_that_was_nobodys_wish_is_no_success() -> None:
    lab = Lab(DispatchConfig(local_prefill_max_tokens=1000))
    lab.join(D, "decode")
    for name in ("left", "broken", "well"):
        lab.submit(name, max_tokens=2)
        lab.chunk(D, name, 0, 7)
    lab.do(lab.dispatcher.cancel("left", 0.1))
    lab.chunk(D, "well", 1, 8, finish="length")
    lab.do(lab.dispatcher.finish_all(GenerationError("worker_failed", "gone"), 0.2))
    long = lab.dispatcher.signals(1.0).long
    assert (long.num_left, long.num_failed) == (1, 1)
    assert long.attainment == 0.5
    worker = lab.dispatcher.signals(1.0).worker("d")
    assert worker is not None
    assert worker.num_seqs == 0


def test_a_worker_that_offers_fewer_slots_than_it_may_have_is_not_full_while_it_is_idle() -> None:
    """As one does whose number of sequences follows the ITL level."""
    lab = Lab(DispatchConfig(local_prefill_max_tokens=1000))
    lab.join(D, "decode", slots=256)
    lab.say(D, Credits(0, 20, 100, 1000))
    idle = lab.dispatcher.signals(1.0).worker("d")
    assert idle is not None
    assert idle.used_share < 0.1
