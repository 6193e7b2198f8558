"""The compose file keeps to its schema, names files that are there, and agrees with what it mounts."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from slipstream.cluster.commands.tokens_command import tokens_command
from slipstream.cluster.config.loading.config_file import load_config

FOLDER = Path(__file__).resolve().parents[2] / "configs" / "compose"
COMPOSE: dict[str, Any] = yaml.safe_load((FOLDER / "compose.yaml").read_text())
MADE_BY_THE_OPERATOR = ("./secrets/",)


def test_it_keeps_to_the_specification() -> None:
    compose_spec = pytest.importorskip("compose_spec")
    text = re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", (FOLDER / "compose.yaml").read_text())  # as without variables
    read = compose_spec.PyCompose.from_yaml(yaml.safe_dump(yaml.safe_load(text)))
    assert read.get_service("slipstream") is not None
    with pytest.raises(ValueError, match=r"\w"):
        compose_spec.PyCompose.from_yaml("services: {a: {image: b, ports: {c: d}}}")


@pytest.mark.parametrize("name", COMPOSE["services"])
def test_every_service_is_confined(name: str) -> None:
    service = COMPOSE["services"][name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert set(service["deploy"]["resources"]["limits"]) == {"cpus", "memory"}
    assert service["healthcheck"]["test"][0] == "CMD", "an image may have no shell"
    assert service["restart"] == "unless-stopped"
    image = re.sub(r"^\$\{\w+:-(.*)\}$", r"\1", service["image"])
    assert re.search(r":v?\d+\.\d+\.\d+", image), "not a version"


def test_all_that_is_named_is_there() -> None:
    for kind in ("networks", "volumes", "configs", "secrets"):
        for name, service in COMPOSE["services"].items():
            used = [one if isinstance(one, str) else one["source"] for one in service.get(kind, [])]
            if kind == "volumes":
                used = [one.split(":")[0] for one in used if not one.startswith(".")]
            assert set(used) <= set(COMPOSE[kind]), name
    files = [one["file"] for kind in ("configs", "secrets") for one in COMPOSE[kind].values()]
    files = [one for one in files if not one.startswith(MADE_BY_THE_OPERATOR)]
    files += [
        one.split(":")[0]
        for service in COMPOSE["services"].values()
        for one in service.get("volumes", [])
        if one.startswith("./")
    ]
    assert len(files) == 4
    assert all((FOLDER / file).exists() for file in files)


def test_ports_are_those_of_the_configuration(tmp_path: Path) -> None:
    text = (FOLDER / "slipstream.yaml").read_text()
    demo = FOLDER.parents[1] / "models" / "slipstream-demo"
    path, tokens = tmp_path / "slipstream.yaml", tmp_path / "tokens.yaml"
    assert CliRunner().invoke(tokens_command, ["add", str(tokens), "prometheus", "--role", "read"]).exit_code == 0
    path.write_text(
        text.replace("/opt/slipstream/models/slipstream-demo", str(demo))
        .replace("/run/secrets/keys.yaml", str(FOLDER.parent / "access" / "keys.example.yaml"))
        .replace("/run/secrets/tokens.yaml", str(tokens))
    )
    config = load_config(path)
    slipstream = COMPOSE["services"]["slipstream"]
    assert [port.rsplit(":", 1)[1] for port in slipstream["ports"]] == [str(config.router.http.port)]
    assert config.router.admin is not None
    router, driver = yaml.safe_load((FOLDER / "prometheus.yaml").read_text())["scrape_configs"]
    assert router["static_configs"] == [{"targets": [f"slipstream:{config.router.admin.port}"]}]
    assert driver["static_configs"] == [{"targets": [f"slipstream:{config.admin_api.port}"]}]
    [token] = COMPOSE["services"]["prometheus"]["secrets"]
    assert driver["authorization"]["credentials_file"] == f"/run/secrets/{token}"
    grace_s = int(slipstream["stop_grace_period"].removesuffix("s"))
    assert grace_s > config.drain_grace_s + config.drain_timeout_s + 10
    assert COMPOSE["networks"]["watching"] == {"internal": True}
