"""The flags of Triton's server that were given, in the place of a configuration."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import click
import yaml

from slipstream.cluster.triton_flags.flag import Flag, FlagError, FlagKind, FlagValue
from slipstream.cluster.triton_flags.flag_settings import Settings, remarks_about, settings_of
from slipstream.cluster.triton_flags.flag_table import BY_NAME, FLAGS
from slipstream.router.model_files.sources.weights_url import WeightsUrl

HIDDEN = "VALUE"  # in the place of a secret
PARAMETERS: dict[FlagKind, click.ParamType[Any]] = {
    "text": click.STRING,
    "number": click.INT,
    "fraction": click.FLOAT,
    "switch": click.BOOL,
    "bare": click.BOOL,
}


@dataclass(frozen=True, slots=True)
class RepositoryFlags:
    """`given` has the values of each flag."""

    given: Mapping[str, tuple[FlagValue, ...]]

    @classmethod
    def of(cls, parameters: Mapping[str, Any]) -> RepositoryFlags | None:
        """What a command was given, with the parameters of `OPTIONS`; None if no flag was. Raises FlagError if there is
        no repository among them."""
        given: dict[str, tuple[FlagValue, ...]] = {}
        for flag in FLAGS:
            value = parameters[flag.key]
            values = value if flag.is_repeated else (value,) if value is not None and value != () else ()
            if values and not (flag.kind == "bare" and not value):
                given[flag.name] = tuple(values)
        if given and not {"model-repository", "model-store"} & given.keys():
            raise FlagError(f"--{next(iter(given))} needs --model-repository; in a configuration it is a setting")
        return cls(given) if given else None

    @property
    def paths(self) -> list[str]:
        return [str(path) for name in ("model-repository", "model-store") for path in self.given.get(name, ())]

    def arguments(self, *, hides_secrets: bool = False) -> list[str]:
        """The flags as a command line has them."""
        return [
            _argument(BY_NAME[name], value, hides_secrets) for name, values in self.given.items() for value in values
        ]

    def settings(self) -> Settings:
        """The configuration, with absolute paths. Raises FlagError."""
        settings = settings_of(self.given)
        repository = settings["repository"]
        repository["paths"] = list(map(_absolute, repository["paths"]))
        if "backend_directory" in repository:
            repository["backend_directory"] = _absolute(repository["backend_directory"])
        tls = repository.get("grpc", {}).get("tls", {})
        tls |= {key: _absolute(name) for key, name in tls.items()}
        return settings

    def text(self) -> str:
        """The configuration as a file."""
        head = "# What the options of `slipstream serve` stood for. What is not named here is as by default.\n\n"
        return head + yaml.safe_dump(self.settings(), sort_keys=False, allow_unicode=True)

    def remarks(self) -> Sequence[str]:
        """Sentences about flags without effect."""
        return list(remarks_about(self.given))

    def __str__(self) -> str:
        return " ".join(self.paths)


def _argument(flag: Flag, value: FlagValue, hides_secrets: bool) -> str:
    if flag.kind == "bare":
        return f"--{flag.name}"
    shown = _shown(value)
    if flag.has_secret and hides_secrets:
        shown = f"{shown.partition('=')[0]}={HIDDEN}"
    return f"--{flag.name}={shown}"


def _shown(value: FlagValue) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _absolute(path: str) -> str:
    return path if WeightsUrl.parse(path) is not None else os.path.abspath(os.path.expanduser(path))


def option_of(flag: Flag) -> click.Option:
    """The option of a command. Those that scripts use rarely are not in its help."""
    if flag.kind == "bare":
        return click.Option([f"--{flag.name}"], is_flag=True, hidden=not flag.help, help=flag.help)
    return click.Option(
        [f"--{flag.name}"],
        type=PARAMETERS[flag.kind],
        multiple=flag.is_repeated,
        hidden=not flag.help,
        help=flag.help,
    )


def setting_options() -> dict[str, str]:
    """The option that a setting comes from."""
    composite = {
        "repository.paths": "--model-repository",
        "repository.load_models": "--load-model",
        "repository.backend_config": "--backend-config",
        "repository.cache_bytes": "--cache-config",
        "repository.rate_limit_resources": "--rate-limit-resource",
        "repository.http.restricted": "--http-restricted-api",
        "repository.grpc.restricted": "--grpc-restricted-protocol",
        "repository.grpc.tls.cert_file": "--grpc-server-cert",
        "repository.grpc.tls.key_file": "--grpc-server-key",
        "repository.grpc.tls.client_ca_file": "--grpc-root-cert",
    }
    return {flag.setting: f"--{flag.name}" for flag in FLAGS if flag.setting} | composite
