"""Settings under names that they had in earlier versions: in files, in the state of a cluster, between processes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from slipstream.cluster.config.cluster_config import AdminApiConfig, ClusterConfig
from slipstream.cluster.config.former_names import former_keys
from slipstream.cluster.config.loading.config_file import load_config
from slipstream.cluster.config.model_entry import ServedModelConfig
from slipstream.cluster.config.served_config import as_plain, from_plain
from slipstream.cluster.config.settings_by_name import ByName, by_name, settings_of
from slipstream.cluster.config.settings_file import ConfigError
from slipstream.router.config.router_config import RouterConfig

MODEL = f"model: {{path: {Path(__file__).resolve().parents[3] / 'models' / 'slipstream-demo'}}}\n"


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "c.yaml"
    path.write_text(MODEL + text)
    return path


def test_every_former_key_is_that_of_a_setting_which_exists() -> None:
    assert dict(former_keys()) == {("operator",): "admin_api", ("router", "fronts"): "frontends"}


def test_a_former_name_still_works_and_the_warning_names_both(tmp_path: Path) -> None:
    path = write(tmp_path, "operator:\n  port: 8002\nrouter:\n  fronts: 3\n")
    warnings: list[str] = []
    config = load_config(path, warnings.append)
    assert (config.admin_api.port, config.router.frontends) == (8002, 3)
    rewrites = f"now; `slipstream check --rewrite {path}` renames it"
    assert warnings == [
        f"{path}:2: operator: is called admin_api {rewrites}",
        f"{path}:5: router.fronts: is called router.frontends {rewrites}",
    ]


def test_present_names_bring_no_warning(tmp_path: Path) -> None:
    warnings: list[str] = []
    load_config(write(tmp_path, "admin_api: {port: 8002}\nrouter: {frontends: 2}\n"), warnings.append)
    assert not warnings


def test_a_setting_given_under_both_names_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path, "admin_api: {port: 8002}\noperator: {port: 8002}\n")
    with pytest.raises(ConfigError) as error:
        load_config(path)
    assert error.value.problems == [f"{path}:3: operator: given also as admin_api, which is its name now"]


def test_a_mistake_below_a_former_name_has_its_line(tmp_path: Path) -> None:
    path = write(tmp_path, "operator:\n  port: 8002\n  prot: 1\n")
    with pytest.raises(ConfigError) as error:
        load_config(path, lambda warning: None)
    (problem,) = error.value.problems
    assert problem == f"{path}:4: admin_api.prot: unknown setting; did you mean port?"


def test_the_state_file_keeps_the_former_names_and_is_read_with_either() -> None:
    config = ClusterConfig(ServedModelConfig("/m"), router=RouterConfig(frontends=2), admin_api=AdminApiConfig(port=7))
    plain = json.loads(json.dumps(as_plain(config)))
    assert (plain["operator"]["port"], plain["router"]["fronts"]) == (7, 2)
    assert not {"admin_api", "frontends"} & {*plain, *plain["router"]}
    assert from_plain(plain) == config
    plain["admin_api"], plain["router"]["frontends"] = plain.pop("operator"), plain["router"].pop("fronts")
    assert from_plain(plain) == config


def test_a_renamed_field_reaches_older_and_newer_processes() -> None:
    router = replace(RouterConfig(), frontends=3)
    sent = by_name(router)
    assert sent.fields["fronts"] == sent.fields["frontends"] == 3
    assert settings_of(sent) == router
    assert settings_of(ByName(RouterConfig, {"fronts": 3})) == router
