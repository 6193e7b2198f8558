"""The history of a cluster: what is kept, in which order, and what becomes of it when something breaks."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from slipstream.cluster.cli import main
from slipstream.cluster.commands.history_command import moment_of
from slipstream.cluster.fleet.author import DRIVER, Author
from slipstream.cluster.fleet.fleet_port import FleetError
from slipstream.cluster.history import change_log as module
from slipstream.cluster.history.change_log import ChangeFilter, ChangeLog, history_path
from slipstream.cluster.history.key_changes import KeyChanges
from slipstream.cluster.history.recorded_fleet import RecordedFleet
from tests.support.cluster.fake_fleet import FakeFleet

ALICE = Author("alice", "more load")


def subjects(log: ChangeLog, wanted: ChangeFilter = module.EVERYTHING) -> list[str]:
    return [change.subject for change in log.latest(10_000, wanted)]


def test_the_next_driver_continues_the_numbers_and_shows_what_the_last_one_noted(tmp_path: Path) -> None:
    path = tmp_path / "c.jsonl"
    first = ChangeLog(path)
    first.note(ALICE, "scale", "decode", "1", "2", model="chat")
    first.close()
    second = ChangeLog(path)
    second.note(DRIVER, "cluster", "c", "", "ready")
    found = second.latest(10)
    assert [(one.number, one.who, one.what, one.old, one.new, one.why, one.model) for one in found] == [
        (1, "alice", "scale", "1", "2", "more load", "chat"),
        (2, "driver", "cluster", "", "ready", "", ""),
    ]
    second.close()


def test_half_a_line_of_a_killed_driver_costs_no_other_line(tmp_path: Path) -> None:
    path = tmp_path / "c.jsonl"
    first = ChangeLog(path)
    first.note(ALICE, "scale", "a")
    first.close()
    path.write_bytes(path.read_bytes() + b'{"number": 2, "at_s"')
    second = ChangeLog(path)
    second.note(ALICE, "scale", "b")
    assert subjects(second) == ["a", "b"]
    assert [one.number for one in second.latest(2)] == [1, 2]


def test_full_files_are_kept_up_to_a_number_and_the_rest_is_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_BYTES", 1000)
    log = ChangeLog(tmp_path / "c.jsonl")
    for number in range(100):
        log.note(ALICE, "scale", str(number))
    assert len(list(tmp_path.iterdir())) == module.MAX_FILES
    kept = subjects(log)
    assert kept == [str(number) for number in range(100 - len(kept), 100)]
    assert 5 * module.MAX_FILES <= len(kept) < 50
    assert ChangeLog(tmp_path / "c.jsonl").note(ALICE, "scale").number == 101


def test_changes_are_chosen_by_number_time_and_model(tmp_path: Path) -> None:
    log = ChangeLog(tmp_path / "c.jsonl")
    log.note(ALICE, "scale", "a", model="chat")
    middle = log.note(ALICE, "keys", "b")
    log.note(ALICE, "scale", "c", model="code")
    assert subjects(log, ChangeFilter(after=middle.number)) == ["c"]
    assert subjects(log, ChangeFilter(since_s=middle.at_s)) == ["b", "c"]
    assert subjects(log, ChangeFilter(model="chat")) == ["a", "b"]
    assert [one.subject for one in log.latest(1)] == ["c"]


def test_what_could_not_be_written_is_written_with_the_next_change_and_reported_once(tmp_path: Path) -> None:
    said: list[str] = []
    folder = tmp_path / "folder"
    folder.write_text("a file where the folder is to be")
    log = ChangeLog(folder / "c.jsonl", said.append)
    log.note(ALICE, "scale", "a")
    log.note(ALICE, "scale", "b")
    assert len(said) == 1
    assert "the history cannot be written to" in said[0]
    assert subjects(log) == ["a", "b"]
    folder.unlink()
    log.note(ALICE, "scale", "c")
    assert subjects(ChangeLog(folder / "c.jsonl")) == ["a", "b", "c"]


def test_lines_are_synced_while_the_loop_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    monkeypatch.setattr(module.os, "fsync", synced.append)

    async def main() -> None:
        log = ChangeLog(tmp_path / "c.jsonl")
        for _ in range(100):
            log.note(ALICE, "scale")
        async with asyncio.timeout(10):
            while not synced:
                await asyncio.sleep(0.01)

    asyncio.run(main())
    assert len(synced) == 1, "one sync for all lines of a moment"


def test_only_changes_that_were_made_are_noted() -> None:
    log = ChangeLog(None)
    fleet = RecordedFleet(FakeFleet(num_decode=2), log, ALICE, "chat")

    async def main() -> None:
        await fleet.scale("decode", 3)
        await fleet.scale("decode", 3)
        await fleet.switch_role("decode-0", "prefill")
        await fleet.switch_role("decode-0", "prefill")
        await fleet.remove("decode-1")
        with pytest.raises(FleetError):
            await fleet.remove("decode-9")

    asyncio.run(main())
    assert [(one.what, one.subject, one.old, one.new) for one in log.latest(10)] == [
        ("scale", "decode", "2", "3"),
        ("role", "decode-0", "decode", "prefill"),
        ("remove", "decode-1", "decode", ""),
    ]
    assert {(one.who, one.why, one.model) for one in log.latest(10)} == {("alice", "more load", "chat")}


def test_changed_keys_are_named_without_their_secrets(tmp_path: Path) -> None:
    path = tmp_path / "keys.yaml"
    path.write_text(f"keys:\n- {{name: a, sha256: {'ab' * 32}}}\n- {{name: b, sha256: {'cd' * 32}}}\n")
    keys = KeyChanges(path)
    assert keys.look() == []
    path.write_text(f"keys:\n- {{name: a, sha256: {'1f' * 32}, weight: 2}}\n- {{name: cc, sha256: {'ef' * 32}}}\n")
    assert [(one.name, one.what) for one in keys.look()] == [
        ("a", "changed: sha256, weight"),
        ("b", "removed"),
        ("cc", "added"),
    ]
    assert keys.look() == []
    path.write_text("keys: [")
    assert keys.look() == []


def test_the_command_shows_the_history_of_a_cluster_that_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("XDG_RUNTIME_DIR", "XDG_STATE_HOME"):
        monkeypatch.setenv(name, str(tmp_path / name))
    log = ChangeLog(history_path("gone"))
    log.note(ALICE, "scale", "decode", "1", "2")
    log.close()
    shown = CliRunner().invoke(main, ["history", "gone"])
    assert shown.exit_code == 0, shown.output
    assert "alice  scale  -      decode   1    2    more load" in shown.output
    (line,) = CliRunner().invoke(main, ["history", "gone", "--json"]).output.splitlines()
    assert json.loads(line)["new"] == "2"
    assert CliRunner().invoke(main, ["history", "gone", "--since", "1h"]).output.count("alice") == 1
    assert "there is no history of one" in CliRunner().invoke(main, ["history", "never"]).output
    assert "expected a time such as 30m" in CliRunner().invoke(main, ["history", "gone", "--since", "soon"]).output


def test_times_are_ago_or_of_a_clock() -> None:
    assert moment_of("90m", 10_000.0) == 4600.0
    assert moment_of("2027-01-01T00:00+00:00", 0.0) == 1798761600.0
