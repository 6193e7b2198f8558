"""A deployment with a repository of tensor models, beside other models or without them."""

from __future__ import annotations

from pathlib import Path

import pytest

from slipstream.cluster.config.cluster_config import ClusterConfig
from slipstream.cluster.config.loading.config_file import load_config
from slipstream.cluster.config.model_entry import NO_MODEL, ModelEntry
from slipstream.cluster.config.served_config import as_plain, from_plain
from slipstream.cluster.config.settings_file import ConfigError
from slipstream.cluster.driver.listeners import listeners
from slipstream.router.config.repository_config import RepositoryConfig

ROOT = Path(__file__).parents[4]
DEMO = ROOT / "models/slipstream-demo"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """It has the repository `tensors`."""
    (tmp_path / "tensors").mkdir()
    return tmp_path


def loaded(folder: Path, text: str) -> ClusterConfig:
    (folder / "c.yaml").write_text(text)
    return load_config(folder / "c.yaml")


def problem(folder: Path, text: str) -> str:
    with pytest.raises(ConfigError) as error:
        loaded(folder, text)
    (only,) = error.value.problems
    return only.removeprefix(f"{folder}/")


def test_a_deployment_may_have_a_repository_and_no_model(folder: Path) -> None:
    config = loaded(folder, "repository: {paths: [tensors]}")
    assert config.repository.paths == (str(folder / "tensors"),)
    assert (config.has_model, config.model, config.entries()) == (False, NO_MODEL, ())
    assert (config.num_ranks, config.num_cpus) == (0, pytest.approx(0.1))


def test_a_repository_may_stand_beside_models(folder: Path) -> None:
    config = loaded(folder, f"model: {{path: {DEMO}}}\nrepository: {{paths: [tensors, s3://bucket/more]}}")
    assert config.has_model
    assert config.repository.paths == (str(folder / "tensors"), "s3://bucket/more")
    assert config.alone(config.entries()[0]).repository == config.repository


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("repository: {paths: [nowhere]}", "c.yaml:1: repository.paths.0: no such directory: "),
        (
            'repository: {paths: [tensors], grpc: {forward_headers: "a("}}',
            "c.yaml:1: repository.grpc.forward_headers: must be a regular expression, got 'a(': missing )",
        ),
        (
            "repository: {paths: [tensors], shared_memory_mib: 0}",
            "c.yaml:1: repository.shared_memory_mib: must be at least 1, or null, got 0",
        ),
        ("repository: {paths: [c.yaml]}", "c.yaml:1: repository.paths.0: not a directory: "),
        (
            "repository: {paths: [ftp://host/x]}",
            "c.yaml:1: repository.paths.0: must be a directory or begin with one of",
        ),
        ("repository: {path: [tensors]}", "c.yaml:1: repository.path: unknown setting; did you mean paths?"),
        ("repository: {paths: [tensors], hosts: 0}", "c.yaml:1: repository.hosts: must be 1 to 64, got 0"),
        (
            "repository: {paths: [tensors], load_models: [a]}",
            "c.yaml:1: repository.load_models: needs control_mode explicit, got none",
        ),
        (
            "repository: {paths: [tensors]}\nrouter: {frontends: 2}",
            "c.yaml:2: router.frontends: must be 1 where there is a repository, got 2",
        ),
        (
            "repository: {paths: [tensors], grpc: {port: 8000}}",
            "c.yaml:1: repository.grpc.port: must differ from the cluster's other ports, got 8000",
        ),
        (
            "repository: {paths: [tensors], grpc: {port: 8002}}",
            "c.yaml:1: repository.metrics.port: must differ from the cluster's other ports, got 8002",
        ),
        (
            "repository: {paths: [tensors]}\nplanner: {enabled: true, class_name: a.B}",
            "c.yaml:2: planner.class_name: must be null where there is only a repository, because planners of one's "
            "own decide about workers, got 'a.B'",
        ),
        (
            "repository: {paths: [tensors]}\ndecode: {replicas: 2}",
            'c.yaml:2: decode: must not be given without a model, got {"replicas": 2}',
        ),
        (
            "repository: {paths: [tensors], grpc: {tls: {cert_file: c.pem}}}",
            "c.yaml:1: repository.grpc.tls.cert_file: and key_file belong together, got 'c.pem' and None",
        ),
        (
            "repository: {paths: [tensors], endpoints: {embeddings: {a: {pool: cls}}}}",
            "c.yaml:1: repository.endpoints.embeddings.a.pool: unknown setting; did you mean pooling?",
        ),
        (
            "repository: {paths: [tensors], endpoints: {embeddings: {a: {inputs: {words: W}}}}}",
            "c.yaml:1: repository.endpoints.embeddings.a.inputs: must have the keys attention_mask, input_ids, text, "
            "token_type_ids, got 'words'",
        ),
        (
            "repository: {paths: [tensors], endpoints: {embeddings: {a: {tokenizer: words}}}}",
            "c.yaml:1: repository.endpoints.embeddings.a.tokenizer: no such directory: ",
        ),
        (
            "repository: {paths: [tensors], endpoints: {embeddings: {a: {tokenizer: " + 300 * "x" + "}}}}",
            "c.yaml:1: repository.endpoints.embeddings.a.tokenizer: no such directory: ",
        ),
        (
            "repository: {paths: [tensors], endpoints: {embeddings: {a: {}, b: {aliases: [a]}}}}",
            "c.yaml:1: repository.endpoints.embeddings: has the name 'a' twice",
        ),
        (
            "repository: {paths: [tensors], endpoints: {rerank: {a: {embeddings: b}}}}",
            "c.yaml:1: repository.endpoints.rerank.a.embeddings: must be one of [], got 'b'",
        ),
        (
            "repository: {paths: [tensors], endpoints: {images: {a: {sizes: [512]}}}}",
            "c.yaml:1: repository.endpoints.images.a.sizes: must be a valid string, got 512",
        ),
        (
            "repository: {endpoints: {chat: {a: {}}}}",
            "c.yaml:1: repository.endpoints: needs paths with the models that they stand for",
        ),
    ],
)
def test_a_mistake_is_one_sentence(folder: Path, text: str, expected: str) -> None:
    assert problem(folder, text).startswith(expected)


def test_a_bare_off_of_yaml_is_understood(folder: Path) -> None:
    config = loaded(folder, "repository: {paths: [tensors], rate_limit: off}")
    assert config.repository.rate_limit == "off"


def test_endpoints_have_tokenizers_relative_to_the_file(folder: Path) -> None:
    (folder / "words").mkdir()
    config = loaded(
        folder,
        "repository: {paths: [tensors], endpoints: "
        "{embeddings: {a: {tokenizer: words}}, chat: {a: {}, b: {model: m}}}}",
    )
    endpoints = config.repository.endpoints
    assert endpoints.embeddings["a"].tokenizer == str(folder / "words")
    assert (endpoints.chat["a"].model, endpoints.chat["b"].model) == ("", "m")
    assert from_plain(as_plain(config)) == config


def test_the_next_driver_goes_on_with_the_same_configuration(folder: Path) -> None:
    config = loaded(folder, "repository: {paths: [tensors], control_mode: explicit, load_models: [a]}")
    assert from_plain(as_plain(config)) == config


def test_a_configuration_without_a_repository_is_as_an_earlier_slipstream_knows_it(folder: Path) -> None:
    assert "repository" not in as_plain(loaded(folder, f"model: {{path: {DEMO}}}"))


def test_models_can_join_a_repository_and_leave_it() -> None:
    config = ClusterConfig(repository=RepositoryConfig(("/r",)))
    joined = config.with_models([ModelEntry("/m", "m")])
    assert (joined.has_model, [entry.name for entry in joined.entries()]) == (True, ["m"])
    assert joined.with_models([]) == config


def test_the_ports_of_a_repository_are_checked_before_the_start() -> None:
    config = ClusterConfig(repository=RepositoryConfig(("/r",)))
    found = {one.section: (one.host, one.port) for one in listeners(config)}
    assert found["repository.grpc"] == ("127.0.0.1", 8001)
    assert found["repository.metrics"] == ("127.0.0.1", 8002)
    assert found["repository"] == ("127.0.0.1", 0)
