"""What clients have loaded, as the next router finds it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from slipstream.router.model_repository.explicit_loads import ExplicitLoad, ExplicitLoads, ExplicitUnload


def test_the_latest_load_of_each_model_is_remembered(tmp_path: Path) -> None:
    loads = ExplicitLoads.beside(tmp_path / "c.instances.sock")
    assert loads.latest() == {}
    with_files = ExplicitLoad('{"backend": "python"}', {"1/model.py": b"\x00\xff"})
    loads.loaded("a", with_files)
    loads.loaded("b/..", ExplicitLoad())
    loads.loaded("c", ExplicitLoad())
    loads.unloaded("c", ["1", "3"])
    found = ExplicitLoads.beside(tmp_path / "c.instances.sock").latest()
    assert found == {"a": with_files, "b/..": ExplicitLoad(), "c": ExplicitUnload(("1", "3"))}
    loads.forget()
    assert loads.latest() == {}


def test_files_of_others_are_passed_over(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text("[]")
    (tmp_path / "y.json").write_text("not JSON")
    loads = ExplicitLoads(tmp_path)
    loads.loaded("a", ExplicitLoad())
    assert list(loads.latest()) == ["a"]


def test_an_unload_of_an_earlier_release_names_no_versions(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"model": "a"}')
    assert ExplicitLoads(tmp_path).latest() == {"a": ExplicitUnload()}


@pytest.mark.parametrize("whose", ["anyone's", "another user's", "a link"])
def test_a_folder_that_others_can_write_to_is_not_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, whose: str
) -> None:
    folder = tmp_path / "loads"
    ExplicitLoads(folder).loaded("a", ExplicitLoad())
    if whose == "anyone's":
        folder.chmod(0o777)
    elif whose == "another user's":
        monkeypatch.setattr(os, "geteuid", lambda: folder.stat().st_uid + 1)
    else:
        folder = folder.rename(tmp_path / "elsewhere")
        (tmp_path / "loads").symlink_to(folder)
    loads = ExplicitLoads(tmp_path / "loads")
    assert loads.latest() == {}
    loads.unloaded("b")
    assert [path.name for path in folder.iterdir()] == ["a.json"]
    assert caplog.text.count("is not a folder that only this user can write to") == 2


def test_a_load_counts_although_it_cannot_be_remembered(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").touch()
    ExplicitLoads(tmp_path / "file").loaded("a", ExplicitLoad())
    assert "the next router will not know what was done to model 'a'" in caplog.text
