"""Files whose settings are renamed in place."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import yaml

from slipstream.cluster.config.loading.file_rewrite import rewrite
from slipstream.cluster.config.settings_file import ConfigError

OLD = """\
# A deployment.
model: {path: m}      # relative to this file

operator:   # the driver's
    port: 8002
router: {http: {port: 0}, "fronts" : 2}   # fronts: as many as cores
# operator: this is a comment
"""
NEW = """\
# A deployment.
model: {path: m}      # relative to this file

admin_api:   # the driver's
    port: 8002
router: {http: {port: 0}, "frontends" : 2}   # fronts: as many as cores
# operator: this is a comment
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "c.yaml"


@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_only_the_keys_change(path: Path, line_end: str, mark: str) -> None:
    path.write_bytes((mark + OLD.replace("\n", line_end)).encode())
    path.chmod(0o640)
    assert rewrite(path) == [
        f"{path}:4: operator is now admin_api",
        f"{path}:6: router.fronts is now router.frontends",
    ]
    assert path.read_bytes() == (mark + NEW.replace("\n", line_end)).encode()
    assert path.stat().st_mode & 0o777 == 0o640
    assert os.listdir(path.parent) == ["c.yaml"]


def test_a_second_time_nothing_is_written(path: Path) -> None:
    path.write_text(OLD)
    rewrite(path)
    before = path.stat()
    assert rewrite(path) == []
    assert path.stat() == before


def test_a_link_stays_a_link(path: Path) -> None:
    target = path.with_name("target.yaml")
    target.write_text(OLD)
    path.symlink_to(target.name)
    rewrite(path)
    assert path.is_symlink()
    assert target.read_text() == NEW


@pytest.mark.parametrize(
    ("text", "after"),
    [
        ("model: {path: m}\n? operator\n: {port: 1}\n", "model: {path: m}\n? admin_api\n: {port: 1}\n"),
        ("model: {path: m}\n&a operator: {port: 1}\n", "model: {path: m}\n&a admin_api: {port: 1}\n"),
        ("{model: {path: m}, 'operator': {port: 1}}", "{model: {path: m}, 'admin_api': {port: 1}}"),
        ("model: {path: operator}\nname: fronts\n", "model: {path: operator}\nname: fronts\n"),
        ("model: {path: m}\nrouter: {<<: {fronts: 2}}\n", "model: {path: m}\nrouter: {<<: {frontends: 2}}\n"),
    ],
)
def test_keys_in_every_form_of_yaml_are_found(path: Path, text: str, after: str) -> None:
    path.write_text(text)
    rewrite(path)
    assert path.read_text() == after
    assert yaml.safe_load(after) is not None


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("model: {path: m\n", ":2: not valid YAML: "),
        ("model: {path: m}\noperator: {}\nadmin_api: {}\n", ":2: operator: given also as admin_api"),
        ('model: {path: m}\n"op\\u0065rator": {}\n', ":2: operator: must be renamed to admin_api by hand"),
        ("model: {path: &x operator}\n*x : {port: 1}\n", ":1: operator: must be renamed to admin_api by hand"),
        ("", ": empty"),
    ],
)
def test_what_cannot_be_rewritten_is_refused_and_stays(path: Path, text: str, problem: str) -> None:
    path.write_text(text)
    with pytest.raises(ConfigError) as error:
        rewrite(path)
    assert f"{path}{problem}" in error.value.problems[0]
    assert path.read_text() == text
    assert os.listdir(path.parent) == ["c.yaml"]


def test_a_read_only_file_is_refused_and_stays(path: Path) -> None:
    path.write_text(OLD)
    path.chmod(0o444)
    with pytest.raises(ConfigError, match="read-only"):
        rewrite(path)
    assert path.read_text() == OLD
