"""Files of dead processes go; those of the living stay."""

from __future__ import annotations

import secrets
import subprocess
import sys
from pathlib import Path

import pytest

from slipstream.router.tensor_memory.mapped_files import MappedFiles
from slipstream.router.tensor_memory.shared_file import PREFIX, SHM, SharedFile
from slipstream.router.tensor_memory.stale_files import files_prefix, remove_files_of, remove_files_of_the_dead


def test_files_that_no_process_has_locked_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slipstream.router.tensor_memory.shared_file.SHM", tmp_path)
    code = (
        "import sys, os; from pathlib import Path; from slipstream.router.tensor_memory import shared_file as s;"
        "s.SHM = Path(sys.argv[1]); s.SharedFile('slipstream-dead-1', 4096); os._exit(9)"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False)
    living = SharedFile("slipstream-alive-1", 4096)
    other = tmp_path / "of-another-program"
    other.touch()
    assert remove_files_of_the_dead(tmp_path) == 0  # they are too young to tell
    assert remove_files_of_the_dead(tmp_path, min_age_s=0.0) == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["of-another-program", "slipstream-alive-1"]
    living.remove()


def test_the_files_of_an_instance_go_with_it(tmp_path: Path) -> None:
    for name in (f"{PREFIX}abc-1", f"{PREFIX}abc-2", f"{PREFIX}abcd-1"):
        (tmp_path / name).touch()
    assert remove_files_of("abc", tmp_path) == 2
    assert [path.name for path in tmp_path.iterdir()] == [f"{PREFIX}abcd-1"]


def test_a_file_is_mapped_once_and_forgotten_with_its_process() -> None:
    launch = secrets.token_hex(6)
    key = f"{files_prefix(launch)}1"
    file = SharedFile(key, 4096)
    files = MappedFiles()
    try:
        assert files.place(key, 0, 10).region is files.place(key, 4000, 96).region
        with pytest.raises(ValueError, match="97 bytes at 4000 do not lie within its 4096 bytes"):
            files.place(key, 4000, 97)
        assert len(files) == 1
        files.forget(files_prefix(launch))
        assert len(files) == 0
    finally:
        file.remove()
    with pytest.raises(FileNotFoundError):
        files.place(key, 0, 10)


def test_the_name_of_a_clients_memory_may_be_used_again() -> None:
    files = MappedFiles()
    key = f"client-{secrets.token_hex(6)}"
    for content in (b"first", b"other"):
        (SHM / key).write_bytes(content)
        assert bytes(files.place(key, 0, 5).view) == content
        (SHM / key).unlink()
