from __future__ import annotations

import gzip
import json
import os
import threading
from itertools import islice
from pathlib import Path

import pytest

from slipstream.cluster.tools.workload.arrival import Arrival, TraceError
from slipstream.cluster.tools.workload.mix import MIXES, parse_mix
from slipstream.cluster.tools.workload.trace_file import read_trace
from slipstream.cluster.tools.workload.workload import open_workload

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
        Arrival(0.0, 600, 3, (0, 1)),
        Arrival(0.5, 1030, 1, (0, 1, 2), session="a"),
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
        ("", 1, "the file is empty"),
        ("\n \n", 1, "the file is empty"),
        ("arrival_s,input_length,input_length,output_length\n1,2,3,4\n", 1, "column input_length is there 2 times"),
        ("arrival_s,input_length,output_length\n1,1,041,7\n", 2, "4 fields, and the header has 3: 1,1,041,7"),
        (
            "arrival_s,input_length,output_length\n1,100000001,1\n",
            2,
            "input_length: a whole number from 0 to 100,000,000",
        ),
        (
            "arrival_s,input_length,output_length\n0,1,1\n1e10,1,1\n",
            3,
            "this request comes 1e+10 s after the first one",
        ),
        (f"{AZURE}\n0001-01-01 00:00:00+14:00,1,1\n2024-01-01 00:00:00,1,1\n", 3, "2.02e+03 years"),
        (f"{AZURE}\n1700158546.5,1,1\n", 2, "TIMESTAMP: a time was expected, got '1700158546.5'"),
        ('[{"timestamp": 0, "input_length": 5, "output_length": 1}]', 1, "a JSON object in each line was expected"),
        ('{"timestamp": 0, "input_length": NaN, "output_length": 1}', 1, "input_length: a finite number was expected"),
        ('{"timestamp": 0, "input_length": -5, "output_length": 1}', 1, "input_length: a whole number from 0 to"),
        ("a,b\n1,2\n", 1, "columns arrival_s,input_length,output_length or TIMESTAMP"),
        ("arrival_s,input_length,output_length\n", 1, "no request"),
        ("arrival_s,input_length,output_length\n0,1,1\n1,x,1\n", 3, "input_length: a number was expected, got 'x'"),
        ("arrival_s,input_length,output_length\n0,1\n", 2, "output_length: a number was expected, got None"),
        ('{"timestamp": 1%s}' % ("0" * 400), 1, "timestamp: a number was expected, got 1000"),
        ('{"a": %s' % ("[" * 100_000), 1, "not JSON"),
        ("arrival_s,input_length,output_length\n0,-1,1\n", 2, "input_length: a whole number from 0 to 100,000,000"),
        ("arrival_s,input_length,output_length\nnan,1,1\n", 2, "arrival_s"),
        (f"{AZURE}\nyesterday,1,1\n", 2, "TIMESTAMP: a time was expected"),
        ('{"timestamp": 0, "input_length": 5}\n', 1, "output_length: a number was expected, got None"),
        ('{"timestamp": 0, "input_length": 5, "output_length": 1.5}\n', 1, "output_length: a whole number"),
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


@pytest.mark.parametrize(
    ("content", "line", "said"),
    [
        (b"arrival_s,input_length,output_length,who\n1,2,3,x\n2,3,4,J\xf6rg\n", 3, "not UTF-8 text: character 8"),
        (gzip.compress(MOONCAKE.encode())[:-9], 4, "cannot be read"),
        (b"\x1f\x8b" + bytes(40), 1, "cannot be read"),
        ("arrival_s\n".encode("utf-16"), 1, "not UTF-8 text: character 1"),
        (b'{"timestamp": ' + b"1" * (17 << 20), 1, "longer than 16,777,216 characters"),
    ],
    ids=["latin-1", "cut short", "no gzip after all", "utf-16", "endless line"],
)
def test_bytes_that_are_no_text_are_named_with_their_line(tmp_path: Path, content: bytes, line: int, said: str) -> None:
    path = tmp_path / "trace"
    path.write_bytes(content)
    with pytest.raises(TraceError) as caught:
        read_trace(path)
    assert str(caught.value).startswith(f"{path}:{line}: {said}")


def test_a_folder_is_no_trace(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="cannot be read: Is a directory"):
        read_trace(tmp_path)


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("is_packed", [False, True], ids=["plain", "gzip"])
def test_a_trace_may_be_packed_and_its_lines_end_in_any_way(tmp_path: Path, end: str, is_packed: bool) -> None:
    text = end.join(["arrival_s,input_length,output_length", "7,20,2", "8,30,3", ""]).encode()
    path = tmp_path / "trace"
    path.write_bytes(gzip.compress(text) if is_packed else text)
    assert read_trace(path) == [Arrival(0.0, 20, 2), Arrival(1.0, 30, 3)]


def test_a_trace_may_come_through_a_pipe(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    writing = threading.Thread(target=path.write_text, args=(MOONCAKE,))
    writing.start()
    assert len(read_trace(path)) == 2
    writing.join()


def test_names_of_columns_may_be_written_small_and_files_joined_and_commas_left_over(tmp_path: Path) -> None:
    text = "Model, timestamp,ContextTokens,generatedtokens,\n"
    text += f"m,2024-01-01 00:00:00,10,1,\n\n{text}m,2024-01-01 00:00:01,20,2,\n"
    assert read_trace(written(tmp_path, text)) == [Arrival(0.0, 10, 1), Arrival(1.0, 20, 2)]


def test_times_may_begin_below_zero(tmp_path: Path) -> None:
    text = "arrival_s,input_length,output_length\n1,20,2\n-1,10,1\n"
    assert read_trace(written(tmp_path, text)) == [Arrival(0.0, 10, 1), Arrival(2.0, 20, 2)]


def test_hash_ids_are_numbered_as_they_come_however_large_they_are(tmp_path: Path) -> None:
    text = """{"timestamp": 0, "input_length": 1024, "output_length": 1, "hash_ids": [18446744073709551615, -4]}
{"timestamp": 0, "input_length": 1024, "output_length": 1, "hash_ids": [18446744073709551615, 7]}"""
    assert [a.blocks for a in read_trace(written(tmp_path, text))] == [(0, 1), (0, 2)]


@pytest.mark.parametrize("speed", [0.0, -1.0, 1e-300, 1e300, float("nan"), float("inf")])
def test_a_speed_that_none_can_have_is_refused(speed: float) -> None:
    with pytest.raises(ValueError, match=r"^speed must be "):
        open_workload("chat", 3, speed)


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


def test_of_several_mixes_in_turn_each_is_busy_in_its_own_slots() -> None:
    text = "chat,rate=10,burst=5,every=5,turn=1/3,model=a+documents,rate=10,burst=5,every=5,turn=3/3,model=b"
    workload = open_workload(text, 4000, seed=2)
    arrivals = list(workload)
    assert [a.at_s for a in arrivals] == sorted(a.at_s for a in arrivals)
    for model, slot in (("a", 0), ("b", 2)):
        own = list(workload.of_model(model))
        assert own == [a for a in arrivals if a.model == model]
        assert sum(int(a.at_s / 5) % 3 == slot for a in own) / len(own) == pytest.approx(25 / 27, abs=0.02)


def test_a_workload_of_so_many_seconds_ends_with_its_last_request_in_them() -> None:
    whole = list(open_workload("chat,rate=20", 1000))
    some = list(open_workload("chat,rate=20").within(10.0))
    assert some == [a for a in whole if a.at_s <= 10.0]


def test_a_trace_names_the_models_of_its_requests(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    rows = [{"timestamp": at, "input_length": 5, "output_length": 5, "model": "ab"[at % 2]} for at in range(4)]
    path.write_text("\n".join(map(json.dumps, rows)))
    workload = open_workload(str(path), 6)  # replayed once
    assert [a.model for a in workload] == ["a", "b", "a", "b", "a", "b"]
    assert [round(a.at_s * 1e3) for a in workload.of_model("b")] == [1, 3, 5]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("chat,turn=3/2", "turn must be 1/2 to"),
        ("chat,turn=2", "turn must be such as 2/5"),
        ("chat,every=0", "every must be over 0 s"),
        ("chat+colour=1", "'colour' is none of"),
        ("chat,rate=0", "rate must be over 0"),
        ("chat,rate=1e-300", "rate must be 1e-06 to 1e\\+09 a second"),
        ("chat,burst=1e300", "burst must be 1 to 1000"),
        ("chat,isl=many", "isl must be a number"),
        ("isl=inf,osl=5", "isl must be a number"),
        ("isl=5,osl=nan", "osl must be a number"),
        ("chat,colour=1", "'colour' is none of"),
        ("mixed,isl=5", "several kinds"),
        ("isl=0,osl=5", "isl must be 1 to"),
        ("nowhere.jsonl", "neither a file nor one of chat"),
        ("", "neither a file nor one of chat"),
        ("x" * 5000, "neither a file nor one of chat"),
    ],
)
def test_a_workload_that_cannot_be_says_why(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        open_workload(text)
    assert set(MIXES) == {"chat", "documents", "reasoning", "mixed"}
