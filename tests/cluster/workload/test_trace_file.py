from __future__ import annotations

from itertools import islice
from pathlib import Path

import pytest

from slipstream.cluster.workload.arrival import Arrival, TraceError
from slipstream.cluster.workload.mix import MIXES, parse_mix
from slipstream.cluster.workload.trace_file import read_trace
from slipstream.cluster.workload.workload import open_workload

MOONCAKE = """{"timestamp": 27482, "input_length": 600, "output_length": 3, "hash_ids": [0, 7]}

{"timestamp": 27982, "input_length": 1030, "output_length": 0, "hash_ids": [0, 7, 9], "session_id": "a"}
"""
AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens"


def written(folder: Path, text: str, name: str = "trace") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize("before", ["", "\n \n", "\ufeff", "\ufeff\n"])
def test_mooncake_rows_come_with_blocks_and_times_from_zero(tmp_path: Path, before: str) -> None:
    assert read_trace(written(tmp_path, before + MOONCAKE)) == [
        Arrival(0.0, 600, 3, (0, 7)),
        Arrival(0.5, 1030, 1, (0, 7, 9), session="a"),
    ]


def test_a_null_is_the_same_as_nothing(tmp_path: Path) -> None:
    text = (
        '{"timestamp": 1, "input_length": 5, "output_length": 2, "hash_ids": null, "session_id": null, "tenant": null}'
    )
    assert read_trace(written(tmp_path, text)) == [Arrival(0.0, 5, 2, ())]


@pytest.mark.parametrize(
    "text",
    [
        "arrival_s,input_length,output_length\n3.5,100,7\n1.5,20,2\n",
        f"{AZURE}\n2023-11-16 18:15:48.6805900,100,7\n2023-11-16 18:15:46.6805900,20,2\n",
        f"{AZURE}\r\n2024-05-10 00:00:02.009930+00:00,100,7\r\n2024-05-10 00:00:00.009930+00:00,20,2\r\n",
        f"\ufeff{AZURE}\n2024-05-10 02:00:02+02:00,100,7\n2024-05-10 00:00:00+00:00,20,2\n",
    ],
    ids=["plain", "2023", "2024", "byte order mark, zones, whole seconds"],
)
def test_azure_rows_of_each_form_are_read_and_put_in_order(tmp_path: Path, text: str) -> None:
    path = tmp_path / "azure.csv"
    path.write_bytes(text.encode())
    first, second = read_trace(path)
    assert (first.at_s, first.input_length, first.output_length) == (0.0, 20, 2)
    assert (second.input_length, second.output_length) == (100, 7)
    assert second.at_s == pytest.approx(2.0, abs=1e-5)


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ("", 1, "columns"),
        ("a,b\n1,2\n", 1, "columns arrival_s,input_length,output_length or TIMESTAMP"),
        ("arrival_s,input_length,output_length\n", 1, "no request"),
        ("arrival_s,input_length,output_length\n0,1,1\n1,x,1\n", 3, "input_length: a number was expected, got 'x'"),
        ("arrival_s,input_length,output_length\n0,1\n", 2, "output_length: a number was expected, got None"),
        ('{"timestamp": 1%s}' % ("0" * 400), 1, "timestamp: a number was expected, got 1000"),
        ('{"a": %s' % ("[" * 100_000), 1, "not JSON"),
        ("arrival_s,input_length,output_length\n0,-1,1\n", 2, "input_length: a number of at least 0"),
        ("arrival_s,input_length,output_length\nnan,1,1\n", 2, "arrival_s"),
        (f"{AZURE}\nyesterday,1,1\n", 2, "TIMESTAMP: a time was expected"),
        ('{"timestamp": 0, "input_length": 5}\n', 1, "output_length: a number was expected, got None"),
        ('{"timestamp": 0, "input_length": 5, "output_length": 1.5}\n', 1, "output_length: a number of tokens"),
        ('{"timestamp": 0, "input_length": 5, "output_length": 1}\n{"timestamp\n', 2, "not JSON"),
        ('{"timestamp": 0, "input_length": 5, "output_length": 1}\n[1]\n', 2, "an object was expected"),
        ('{"timestamp": 0, "input_length": 5, "output_length": 1, "hash_ids": [1, 2]}\n', 1, "hash_ids: 2 blocks"),
        ('{"timestamp": 0, "input_length": 5, "output_length": 1, "hash_ids": ["x"]}\n', 1, "hash_ids: a list"),
    ],
)
def test_a_bad_row_is_named_with_file_and_line(tmp_path: Path, text: str, line: int, said: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(TraceError) as caught:
        read_trace(path)
    assert str(caught.value).startswith(f"{path}:{line}: ")
    assert said in str(caught.value)


def test_a_short_trace_is_replayed_with_blocks_of_its_own(tmp_path: Path) -> None:
    workload = open_workload(str(written(tmp_path, MOONCAKE)), num_requests=5, speed=2.0)
    arrivals = list(workload)
    assert len(workload) == len(arrivals) == 5
    assert [a.at_s for a in arrivals] == [0.0, 0.25, 0.5, 0.75, 1.0]
    blocks = [set(a.blocks) for a in arrivals]
    assert len(blocks[0] & blocks[1]) == len(blocks[2] & blocks[3]) == 2
    assert not (blocks[0] | blocks[1]) & (blocks[2] | blocks[3])
    assert not (blocks[2] | blocks[3]) & blocks[4]
    assert arrivals[1].session != arrivals[3].session
    assert list(workload) == arrivals


@pytest.mark.parametrize("number", [1, 2, 3, 7])
def test_when_the_last_request_comes_is_known_without_asking_for_all(tmp_path: Path, number: int) -> None:
    path = written(tmp_path, MOONCAKE)
    for source in (str(path), "mixed,rate=5"):
        workload = open_workload(source, number, 3.0)
        assert workload.last_s == list(workload)[-1].at_s


def test_a_mix_has_its_rate_and_lengths_and_the_same_seed_gives_the_same() -> None:
    workload = open_workload("isl=2000,osl=50,rate=20,spread=0.5", 4000, seed=3)
    arrivals = list(workload)
    assert arrivals == list(workload)
    assert arrivals[-1].at_s == pytest.approx(200, rel=0.1)
    lengths = sorted(a.input_length for a in arrivals)
    assert lengths[2000] == pytest.approx(2000, rel=0.05)
    assert lengths[0] < 1000 < 4000 < lengths[-1]


def test_bursts_keep_two_rates() -> None:
    arrivals = list(islice(parse_mix("chat,rate=10,burst=4").arrivals(1), 3000))
    quiet = sum(int(a.at_s / 10) % 2 == 0 for a in arrivals)
    assert quiet / len(arrivals) == pytest.approx(1 / 17, abs=0.02)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("chat,rate=0", "rate must be over 0"),
        ("chat,isl=many", "isl must be a number"),
        ("isl=inf,osl=5", "isl must be a number"),
        ("isl=5,osl=nan", "osl must be a number"),
        ("chat,colour=1", "'colour' is none of"),
        ("mixed,isl=5", "several kinds"),
        ("isl=0,osl=5", "isl must be 1 to"),
        ("nowhere.jsonl", "neither a file nor one of chat"),
    ],
)
def test_a_workload_that_cannot_be_says_why(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        open_workload(text)
    assert set(MIXES) == {"chat", "documents", "reasoning", "mixed"}
