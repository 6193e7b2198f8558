"""The options of Triton's server as a configuration."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from slipstream.cluster.config.cluster_config import ClusterConfig
from slipstream.cluster.config.loading.config_file import load_config
from slipstream.cluster.serve import serve_command
from slipstream.cluster.sizing.config_choice import config_source, write_chosen
from slipstream.cluster.triton_flags.flag import FlagError
from slipstream.cluster.triton_flags.flag_settings import remarks_about, settings_of
from slipstream.cluster.triton_flags.flag_table import FLAGS
from slipstream.cluster.triton_flags.repository_flags import RepositoryFlags
from slipstream.router.config.kserve_config import GrpcTlsConfig, RestrictedApis
from slipstream.router.config.repository_config import RateLimitResource, RepositoryConfig


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with the repository `models`."""
    (tmp_path / "models").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "run"))
    return tmp_path


def written(folder: Path, *arguments: str) -> ClusterConfig:
    """The configuration that a command line stands for."""
    path = folder / "written.yaml"
    path.unlink(missing_ok=True)
    result = CliRunner().invoke(serve_command, [*arguments, "--write", str(path)])
    assert result.exit_code == 0, result.output
    return load_config(path)


def test_a_repository_is_served_at_the_ports_of_triton(folder: Path) -> None:
    config = written(folder, "--model-repository", "models")
    assert config.repository == RepositoryConfig((str(folder / "models"),))
    assert not config.has_model
    ports = (config.router.http.port, config.repository.grpc.port, config.repository.metrics.port)
    assert ports == (8000, 8001, 8002)


def test_options_become_settings(folder: Path) -> None:
    config = written(
        folder,
        "--model-repository=models",
        "--http-port=1",
        "--grpc-port=2",
        "--metrics-port=3",
        "--http-address=0.0.0.0",
        "--model-control-mode=explicit",
        "--load-model=a",
        "--load-model=b",
        "--strict-readiness=false",
        "--exit-on-error=false",
        "--exit-timeout-secs=7",
        "--disable-auto-complete-config",
        "--cache-config=local,size=1000",
        "--rate-limit=execution_count",
        "--rate-limit-resource=R1:3",
        "--rate-limit-resource=R2:4:1",
        "--backend-config=python,stub-timeout-seconds=9",
        "--backend-config=default-max-batch-size=4",
        "--backend-directory=backends",
        "--metrics-interval-ms=500",
        "--metrics-config=summary_latencies=true",
        "--metrics-config=summary_quantiles=0.5:0.05,0.9:0.01",
        "--trace-config=level=TIMESTAMPS",
        "--trace-config=triton,file=/tmp/trace",
        "--http-restricted-api=model-repository,trace:key=secret",
        "--grpc-restricted-protocol=logging:key=secret",
        "--grpc-infer-response-compression-level=low",
        "--grpc-keepalive-time=1000",
        "--id=mine",
    )
    repository = config.repository
    assert (config.router.http.host, config.router.http.port, config.drain_timeout_s) == ("0.0.0.0", 1, 7.0)
    assert (repository.control_mode, repository.load_models) == ("explicit", ("a", "b"))
    assert (repository.strict_readiness, repository.exit_on_error, repository.auto_complete) == (False, False, False)
    assert (repository.cache_bytes, repository.rate_limit, repository.server_id) == (1000, "execution_count", "mine")
    assert repository.rate_limit_resources == (RateLimitResource("R1", 3), RateLimitResource("R2", 4, "1"))
    assert repository.backend_config == {"python": {"stub-timeout-seconds": "9"}, "": {"default-max-batch-size": "4"}}
    assert repository.backend_directory == str(folder / "backends")
    assert (repository.metrics.port, repository.metrics.interval_s, repository.metrics.summary_latencies) == (
        3,
        0.5,
        True,
    )
    assert repository.metrics.summary_quantiles == ((0.5, 0.05), (0.9, 0.01))
    assert repository.trace == {"trace_level": "TIMESTAMPS", "trace_file": "/tmp/trace"}
    assert repository.http.restricted == (RestrictedApis(("model-repository", "trace"), "key", "secret"),)
    of_grpc = RestrictedApis(("logging",), "triton-grpc-protocol-key", "secret")
    assert repository.grpc.restricted == (of_grpc,)
    assert (repository.grpc.port, repository.grpc.compression, repository.grpc.keepalive_s) == (2, "low", 1.0)


def test_grpc_and_metrics_can_be_left_out(folder: Path) -> None:
    config = written(folder, "--model-repository=models", "--grpc-port=2", "--allow-grpc=false", "--allow-metrics=0")
    assert (config.repository.grpc.port, config.repository.metrics.port) == (None, None)


def test_files_of_tls_count_where_tls_is_on() -> None:
    files: dict[str, Any] = {"model-repository": ("m",), "grpc-server-cert": ("c",), "grpc-server-key": ("k",)}
    assert "grpc" not in settings_of(files)["repository"]
    settings = settings_of(files | {"grpc-use-ssl": (True,)})
    assert GrpcTlsConfig(**settings["repository"]["grpc"]["tls"]) == GrpcTlsConfig("c", "k")
    with pytest.raises(FlagError, match="--grpc-root-cert: missing beside --grpc-use-ssl-mutual"):
        settings_of(files | {"grpc-use-ssl-mutual": (True,)})


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("cache-config", "redis,host=x", "--cache-config: must be local,size=BYTES, got 'redis,host=x'"),
        ("cache-config", "local,size=big", "--cache-config: must be a number, got 'big'"),
        ("backend-config", "python", "--backend-config: must be BACKEND,SETTING=VALUE, got 'python'"),
        ("metrics-config", "latencies=1", "--metrics-config: must set one of counter_latencies, "),
        ("rate-limit-resource", "R1", "--rate-limit-resource: must be NAME:COUNT or NAME:COUNT:DEVICE, got 'R1'"),
        ("trace-config", "colour=1", "--trace-config: must set one of level, rate, "),
        ("http-restricted-api", "trace", "--http-restricted-api: must be API,...:HEADER=VALUE, got 'trace'"),
        ("allow-sagemaker", True, "--allow-sagemaker: there is no endpoint for SageMaker"),
    ],
)
def test_a_value_that_an_option_cannot_have_is_one_sentence(name: str, value: str | bool, expected: str) -> None:
    with pytest.raises(FlagError) as error:
        settings_of({"model-repository": ("m",), name: (value,)})
    assert str(error.value).startswith(expected)


def test_options_without_effect_are_named_with_the_reason() -> None:
    given = {"model-repository": ("m",), "http-thread-count": (4,), "load-model": ("a",), "log-info": (True,)}
    assert list(remarks_about(given)) == [
        "--log-info has no effect: the cluster has its own logs; `slipstream status` shows where",
        "--http-thread-count has no effect: requests are served by an event loop",
        "--load-model has no effect: it needs --model-control-mode=explicit",
    ]
    assert "load_models" not in settings_of(given)["repository"]


def test_settings_that_no_backend_has_are_named() -> None:
    configs = ("fil,num_threads=2", "default-max-batch-size=4", "python,stub-timeout-seconds=9", "own,speed=3")
    remark = "--backend-config {} has no effect: no backend here has this setting"
    given: dict[str, tuple[str, ...]] = {"backend-config": configs}
    assert list(remarks_about(given)) == [remark.format("python,stub-timeout-seconds"), remark.format("own,speed")]
    given["backend-directory"] = ("/opt/backends",)  # where there may be one that has it
    assert list(remarks_about(given)) == [remark.format("python,stub-timeout-seconds")]


def test_a_mistake_names_the_option_and_not_the_setting(folder: Path) -> None:
    flags = RepositoryFlags({"model-repository": ("models",), "model-control-mode": ("often",)})
    source = config_source(flags, None)
    problem = f"{source.path}:3: repository.control_mode: must be 'none', 'explicit' or 'poll', got \"often\""
    assert source.sentence(problem) == "--model-control-mode: must be 'none', 'explicit' or 'poll', got \"often\""
    missing = f"{source.path}:4: repository.paths.0: no such directory: /nowhere"
    assert source.sentence(missing) == "--model-repository: no such directory: /nowhere"


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"model-repository": ("models",), "http-port": (99999,)}, "--http-port: must be a port number"),
        ({"model-repository": ("models",), "model-control-mode": ("often",)}, "--model-control-mode: must be"),
        ({"model-repository": ("models",), "rate-limit": ("often",)}, "--rate-limit: must be"),
        ({"model-repository": ("/nowhere",)}, "--model-repository: no such directory: /nowhere"),
    ],
)
def test_options_that_would_be_refused_are_not_written(
    folder: Path, capsys: pytest.CaptureFixture[str], given: dict[str, Any], problem: str
) -> None:
    path = folder / "mine.yaml"
    assert write_chosen(RepositoryFlags(given), path) == 2
    assert problem in capsys.readouterr().err
    assert not path.exists()


def test_name_and_port_are_written_and_shown(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = RepositoryFlags({"model-repository": ("models",)})
    assert write_chosen(flags, folder / "mine.yaml", "mine", 8123) == 0
    config = load_config(folder / "mine.yaml")
    assert (config.name, config.router.http.port) == ("mine", 8123)
    config_source(flags, "mine", 8123)
    shown = capsys.readouterr().out
    assert "slipstream serve --name=mine --port=8123 --model-repository=models --write my.yaml" in shown


def test_options_stand_in_the_place_of_a_configuration(folder: Path) -> None:
    beside = CliRunner().invoke(serve_command, ["c.yaml", "--model-repository=models"])
    assert beside.exit_code == 2
    assert "--model-repository stands in the place of c.yaml" in beside.output
    without = CliRunner().invoke(serve_command, ["--grpc-port=1"])
    assert "--grpc-port needs --model-repository" in without.output


def test_the_next_process_gets_the_same_options() -> None:
    given: dict[str, tuple[Any, ...]] = {
        "model-repository": ("a", "b"),
        "strict-readiness": (False,),
        "disable-auto-complete-config": (True,),
        "grpc-port": (0,),
    }
    assert RepositoryFlags(given).arguments() == [
        "--model-repository=a",
        "--model-repository=b",
        "--strict-readiness=false",
        "--disable-auto-complete-config",
        "--grpc-port=0",
    ]


def test_a_secret_among_the_options_is_not_shown_and_kept_for_its_owner(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = {"model-repository": ("models",), "http-restricted-api": ("trace,logging:key=s3cret",)}
    source = config_source(RepositoryFlags(given), None)
    shown = capsys.readouterr().out
    assert "--http-restricted-api=trace,logging:key=VALUE --write my.yaml" in shown
    assert "s3cret" not in shown
    assert "s3cret" in source.path.read_text("utf-8")
    assert source.path.stat().st_mode & 0o077 == 0


def test_the_page_about_triton_has_every_option() -> None:
    page = (Path(__file__).parents[3] / "docs/triton.md").read_text("utf-8")
    assert [flag.name for flag in FLAGS if f"`--{flag.name}`" not in page] == []
