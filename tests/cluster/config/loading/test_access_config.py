"""Keys, certificates and the admin port in a deployment's file."""

from __future__ import annotations

from pathlib import Path

import pytest

from slipstream.cluster.config.loading.config_file import load_config
from slipstream.cluster.config.settings_file import ConfigError
from slipstream.cluster.state.cluster_state import ClusterState

MODEL_DIR = Path(__file__).parents[4] / "models" / "slipstream-demo"
KEY = f"keys: [{{name: a, sha256: '{'ab' * 32}'}}]"


def write(folder: Path, router: str) -> Path:
    path = folder / "deployment.yaml"
    path.write_text(f"model: {{path: {MODEL_DIR}}}\nrouter:\n{router}")
    return path


def test_files_are_named_relative_to_the_deployments_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "keys.yaml").write_text(KEY)
    path = write(tmp_path, "  access: {keys_file: keys.yaml, usage_file: ./sub/../usage.jsonl}\n")
    monkeypatch.chdir("/")
    access = load_config(path).router.access
    assert access.keys_file == str(tmp_path / "keys.yaml")
    assert access.usage_file == str(tmp_path / "usage.jsonl")


@pytest.mark.parametrize(
    ("router", "complaint"),
    [
        (
            "  access: {keys_file: none.yaml}",
            r"deployment\.yaml:3: router\.access\.keys_file: .*none\.yaml: No such file",
        ),
        ("  access:\n    keys_file: bad.yaml", r":4: router\.access\.keys_file: .*key 'a': sha256: must be"),
        ("  access:\n    keys_file: empty.yaml", r":4: router\.access\.keys_file: .*no key is in it"),
        ('  access: {keys_file: "a\\0b"}', r"router\.access\.keys_file: .*embedded null byte"),
        ("  access: {keys: a}", r"router\.access\.keys: unknown setting; "),
        ("  http: {tls: {cert_file: a}}", r"router\.http\.tls\.key_file: must be given beside cert_file"),
        (
            "  http: {tls: {cert_file: a, key_file: b}}",
            r"router\.http\.tls\.cert_file: .*/a: No such file or directory",
        ),
        ("  http: {max_connections: 0}", r"router\.http\.max_connections: must be at least 1, got 0"),
        ("  admin: {port: 99999}", r"router\.admin\.port: must be a port number"),
        ("  admin: {port: 8000}", r"router\.admin\.port: must differ from the router's other ports, got 8000"),
        ("  dispatch: {strict_slo: 1}", r"router\.dispatch\.strict_slo: must be a valid boolean"),
    ],
)
def test_what_is_wrong_is_said_with_its_key(tmp_path: Path, router: str, complaint: str) -> None:
    (tmp_path / "bad.yaml").write_text("keys: [{name: a}]")
    (tmp_path / "empty.yaml").write_text("keys: []")
    with pytest.raises(ConfigError, match=complaint) as wrong:
        load_config(write(tmp_path, router + "\n"))
    assert len(wrong.value.problems) == 1


def test_operators_ask_at_the_admin_port_if_there_is_one() -> None:
    state = ClusterState("c", 1, 0.0, "", "", url="https://h:1")
    assert state.ask_url == "https://h:1"
    state.admin_url = "http://h:2"
    assert state.ask_url == "http://h:2"


@pytest.mark.parametrize(
    ("section", "complaint"),
    [
        ("admin_api: {tls: {cert_file: a}}", r"admin_api\.tls\.key_file: must be given beside cert_file"),
        ("admin_api: {tls: {cert_file: a, key_file: b}}", r"admin_api\.tls\.cert_file: .*/a: No such file"),
        ("admin_api: {tls: {client_ca_file: a}}", r"admin_api\.tls\.cert_file: must be given beside client_ca_file"),
        ("admin_api: {tls: {ca_certs: a}}", r"admin_api\.tls\.ca_certs: unknown setting"),
        (
            "router: {worker_tls: {cert_file: a, key_file: b, ca_file: c}}",
            r"router\.worker_tls\.cert_file: .*/a: No such file",
        ),
        ("router: {ui: {admin_url: 'https://h:1', admin_tls: {ca_file: a}}}", r"ui\.admin_tls\.ca_file: .*/a: No such"),
        ("router: {ui: {admin_tls: {ca_file: a}}}", r"router\.ui\.admin_url: must be https"),
    ],
)
def test_what_is_wrong_with_a_certificate_is_said_with_its_key(tmp_path: Path, section: str, complaint: str) -> None:
    path = tmp_path / "deployment.yaml"
    path.write_text(f"model: {{path: {MODEL_DIR}}}\n{section}\n")
    with pytest.raises(ConfigError, match=complaint) as wrong:
        load_config(path)
    assert len(wrong.value.problems) == 1
