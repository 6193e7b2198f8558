"""The load of the elastic show is set by what workers can do."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from scripts.bench.elastic.load_calibration import ANSWERS_BUSY, PROMPTS_BUSY, Speed, load_for
from scripts.bench.elastic.offered_load import SPREAD, Phase, Request, requests_of, write_requests

PROMPTS, ANSWERS = Phase("prompts", 60.0, 1.0, 1200, 30), Phase("answers", 60.0, 1.0, 100, 400)


@pytest.mark.parametrize("factor", [0.2, 1.0, 5.0])
def test_a_faster_machine_gets_more_and_is_to_be_faster(factor: float) -> None:
    speed = Speed(0.9 * factor, 0.007 * factor, 0.002 * factor)
    load = load_for(speed, 4, PROMPTS, ANSWERS)
    prompts, answers = load.phases
    assert prompts.per_s * speed.prompt_s == pytest.approx(3 * PROMPTS_BUSY, rel=0.05), "of three prefill workers"
    streams = answers.per_s * answers.osl * load.itl_ms / 1e3
    assert streams == pytest.approx(3 * ANSWERS_BUSY * 8.0, rel=0.1), "on three decode workers"
    assert load.ttft_ms == pytest.approx(2700 * factor, rel=0.05)
    assert load.itl_ms == pytest.approx(21 * factor, rel=0.05)


def test_requests_come_at_the_rates_of_their_phases() -> None:
    phases = (Phase("a", 100.0, 4.0, 1000, 30), Phase("b", 50.0, 10.0, 100, 400))
    requests = list(requests_of(phases, seed=1))
    for phase, begin_s in ((phases[0], 0.0), (phases[1], 100.0)):
        here = [one for one in requests if begin_s <= one.at_s < begin_s + phase.seconds]
        assert len(here) == pytest.approx(phase.seconds * phase.per_s, rel=0.15)
        for one in here:
            assert abs(one.isl - phase.isl) <= SPREAD * phase.isl + 1
            assert abs(one.osl - phase.osl) <= SPREAD * phase.osl + 1


def test_no_two_prompts_begin_alike(tmp_path: Path) -> None:
    path = tmp_path / "load.jsonl"
    write_requests([Request(0.0, 513, 2), Request(1.5, 512, 3)], path)
    first, second = map(json.loads, path.read_text().splitlines())
    assert (first["timestamp"], second["timestamp"]) == (0.0, 1500.0)
    assert (len(first["hash_ids"]), len(second["hash_ids"])) == (2, 1)
    assert not set(first["hash_ids"]) & set(second["hash_ids"])
