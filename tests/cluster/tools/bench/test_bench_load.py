"""Prompts of the lengths asked for, arrivals at the rates asked for, goodput and statistics of what came."""

from __future__ import annotations

import itertools
import json
import statistics as plain_statistics
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from slipstream.cluster.tools.bench.client.bench_target import BenchError, Target
from slipstream.cluster.tools.bench.client.client_answer import ClientAnswer
from slipstream.cluster.tools.bench.client.conversation import Lengths, PromptFile, Replay, Synthetic
from slipstream.cluster.tools.bench.client.prompt_text import common_words, prompt_words
from slipstream.cluster.tools.bench.load.answer_slos import Slos, is_slo
from slipstream.cluster.tools.bench.load.level_run import LevelRun
from slipstream.cluster.tools.bench.load.load_level import LoadLevel
from slipstream.cluster.tools.bench.load.measures import STATISTICS, measures
from slipstream.cluster.tools.workload.arrival import Arrival
from slipstream.cluster.tools.workload.workload import Workload

MODEL_DIR = Path(__file__).resolve().parents[4] / "models" / "slipstream-demo"


def texts(source: Synthetic | Replay, count: int, seed: int = 0) -> list[str]:
    words = prompt_words(MODEL_DIR)
    return [c.turns[0].text for c in itertools.islice(source.conversations(words, seed), count)]


def num_tokens(text: str) -> int:
    tokenizer = Tokenizer.from_file(str(MODEL_DIR / "tokenizer.json"))
    return len(tokenizer.encode(text, add_special_tokens=False).ids)


@pytest.mark.parametrize("isl", [1, 2, 17, 1000])
def test_prompts_have_exactly_as_many_tokens_as_asked_for(isl: int) -> None:
    assert prompt_words(MODEL_DIR).is_exact
    found = texts(Synthetic(Lengths(isl), Lengths(8)), 5)
    assert [num_tokens(text) for text in found] == [isl] * 5


def test_a_shared_prefix_is_a_part_of_the_length_and_the_rest_differs() -> None:
    found = texts(Synthetic(Lengths(100), Lengths(8), prefix_tokens=60, num_prefixes=2), 20)
    assert {num_tokens(text) for text in found} == {100}
    assert len({" ".join(text.split()[:60]) for text in found}) == 2
    assert len(set(found)) == 20


def test_the_same_seed_gives_the_same_prompts_and_another_one_others() -> None:
    source = Synthetic(Lengths(50, 20), Lengths(8))
    assert texts(source, 9, seed=1) == texts(source, 9, seed=1)
    assert not set(texts(source, 9, seed=1)) & set(texts(source, 9, seed=2))


def test_blocks_of_a_trace_that_are_equal_are_equal_texts_and_long_prompts_are_cut() -> None:
    trace = (Arrival(0.0, 1100, 10, (1, 2, 3)), Arrival(0.5, 900, 10, (1, 2)), Arrival(1.0, 5000, 10))
    replay = Replay(Workload("t", 3, trace=trace), max_model_len=4096)
    first, second, third = texts(replay, 3)
    assert [num_tokens(first), num_tokens(second)] == [1100, 900]
    assert first.split()[:900] == second.split()
    assert num_tokens(third) == 4096 - 10 - 64
    assert replay.num_cut == 1


def test_words_of_several_tokens_are_counted_as_such() -> None:
    text = next(Synthetic(Lengths(130), Lengths(1)).conversations(common_words(1.3), 0)).turns[0].text
    assert len(text.split()) == 100


def test_prompts_of_a_file_and_what_is_wrong_with_them(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text('{"prompt": "a"}\n\n{"messages": [{"role": "user", "content": "b"}], "output_length": 5}\n')
    given = PromptFile.read(path, 9)
    assert [(turn.text, turn.output_length) for turn in given.turns] == [("a", 9), ("b", 5)]
    for line, said in (
        ("{", "not JSON"),
        ("[]", "an object"),
        ('{"x": 1}', "`prompt`"),
        ('{"prompt": "a", "max_tokens": 0}', "output_length"),
    ):
        path.write_text('{"prompt": "a"}\n' + line)
        with pytest.raises(BenchError, match=r"p\.jsonl:2: .*" + said):
            PromptFile.read(path, None)


@pytest.mark.parametrize("arrivals", ["poisson", "constant", "gamma"])
def test_arrivals_have_the_rate_and_the_spread_that_they_should(arrivals: str) -> None:
    level = LoadLevel(rate=50.0, arrivals=arrivals, burstiness=0.25)  # type: ignore[arg-type]
    times = list(itertools.islice(level.times_s(3), 20_000))
    gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
    mean = plain_statistics.fmean(gaps)
    variation = plain_statistics.pvariance(gaps) / mean**2
    assert mean == pytest.approx(1 / 50, rel=0.05)
    assert variation == pytest.approx({"poisson": 1.0, "constant": 0.0, "gamma": 4.0}[arrivals], rel=0.15, abs=1e-9)


def test_slos_in_their_short_and_long_names() -> None:
    slos = Slos.parse(["ttft:500 itl:50", "request_latency:1000"])
    assert slos.limits_ms == {"time_to_first_token": 500, "inter_token_latency": 50, "request_latency": 1000}
    assert not Slos.parse([])
    assert [is_slo(word) for word in ("itl:50", "localhost:8000", "http://x", "ttft")] == [True, False, False, False]
    for bad in ("ttft", "ttft:", "ttft:x", "ttft:-1", "speed:3", "ttft:nan"):
        with pytest.raises(BenchError, match="--goodput"):
            Slos.parse([bad])


def answer(begun_s: float, ttft_s: float, itl_s: float, num_tokens: int, kind: str = "") -> ClientAnswer:
    latest_s = begun_s + ttft_s + itl_s * (num_tokens - 1)
    made = ClientAnswer(begun_s, 0.0, 200, begun_s + ttft_s, latest_s, latest_s + 0.1)
    made.num_output_tokens, made.num_prompt_tokens = num_tokens, 10
    if kind:
        made.fail(kind)
    return made


def test_metrics_are_what_their_names_say() -> None:
    good = [answer(10.0 + i, 0.1 * (i + 1), 0.01, 11) for i in range(4)]
    bad = answer(9.0, 0.1, 0.01, 11, "HTTP 500")
    run = LevelRun(LoadLevel(2), [*good, bad], num_unfinished=1)
    measured = measures(run, Slos.parse(["ttft:250", "itl:20"]))
    ttft = measured.metrics["time_to_first_token"].values
    assert list(ttft) == list(STATISTICS)
    assert ttft["avg"] == pytest.approx(250)
    assert ttft["p50"] == pytest.approx(250)
    assert ttft["p75"] == pytest.approx(325)
    assert ttft["p90"] == pytest.approx(370)  # interpolated
    assert ttft["std"] == pytest.approx(111.803, rel=1e-4)
    assert measured.get("inter_token_latency") == pytest.approx(10)
    assert measured.get("request_latency", "max") == pytest.approx(500)
    span_s = 13 + 0.4 + 0.1 - 9.0
    assert measured.get("benchmark_duration") == pytest.approx(span_s)
    assert measured.get("output_token_throughput") == pytest.approx(44 / span_s)
    assert measured.get("goodput") == pytest.approx(2 / span_s)
    assert measured.get("good_request_share") == pytest.approx(2 / 5)
    assert (measured.get("request_count"), measured.get("error_count"), measured.get("unfinished_count")) == (4, 1, 1)
    assert measured.errors == {"HTTP 500": (1, "HTTP 500")}
    json.dumps(measured.json(), allow_nan=False)


def test_a_single_token_has_no_latency_between_tokens_and_keeps_its_slo() -> None:
    measured = measures(LevelRun(LoadLevel(1), [answer(0.0, 0.1, 0.0, 1)]), Slos.parse(["itl:1"]))
    assert "inter_token_latency" not in measured.metrics
    assert measured.get("good_request_share") == 1.0


def test_nothing_good_at_all_is_told_without_rates() -> None:
    measured = measures(LevelRun(LoadLevel(1), [answer(0.0, 0.1, 0.0, 1, "timeout")]), Slos.parse(["itl:1"]))
    assert measured.get("request_throughput") is None
    assert measured.get("goodput") == 0.0


@pytest.mark.parametrize(
    ("url", "whole"),
    [
        ("localhost:8000", "http://localhost:8000/v1/chat/completions"),
        ("http://h", "http://h:80/v1/chat/completions"),
        ("https://h/openai/v1/", "https://h:443/openai/v1/chat/completions"),
        ("http://[::1]:9/v1/completions", "http://[::1]:9/v1/completions"),
        ("http://h:1/v1/chat/completions", "http://h:1/v1/chat/completions"),
    ],
)
def test_urls_with_and_without_their_path(url: str, whole: str) -> None:
    assert Target.of_url(url).url == whole


@pytest.mark.parametrize("url", ["ftp://x", "http://", "http://x:notaport"])
def test_what_is_no_url_is_said(url: str) -> None:
    with pytest.raises(BenchError, match="URL"):
        Target.of_url(url)
