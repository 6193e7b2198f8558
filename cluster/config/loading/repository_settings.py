"""Resolves what a configuration says of its repository of tensor models, and checks the files that it names."""

from __future__ import annotations

import dataclasses
import importlib.util
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from slipstream.cluster.config.settings_file import Key
from slipstream.router.config.endpoints_config import ChatEndpoint, EmbeddingsEndpoint, EndpointsConfig, RerankEndpoint
from slipstream.router.config.repository_config import RepositoryConfig
from slipstream.router.model_files.sources.weights_url import WeightsUrl, WeightsUrlError

PACKAGES = ("grpc", "tritonclient")
E = TypeVar("E", EmbeddingsEndpoint, RerankEndpoint, ChatEndpoint)
TLS_FILES = ("cert_file", "key_file", "client_ca_file")


def with_absolute_files(config: RepositoryConfig, folder: Path) -> RepositoryConfig:
    """The configuration with absolute paths, which it has relative to `folder`. Addresses stay as they are."""

    def absolute(name: str) -> str:
        return os.path.normpath(folder / os.path.expanduser(name))

    tls = config.grpc.tls
    files = {key: absolute(name) for key in TLS_FILES if (name := getattr(tls, key)) is not None}
    grpc = dataclasses.replace(config.grpc, tls=dataclasses.replace(tls, **files))
    paths = tuple(path if is_address(path) else absolute(path) for path in config.paths)
    backends = absolute(config.backend_directory) if config.backend_directory is not None else None
    downloads = absolute(config.download_folder) if config.download_folder is not None else None
    # What is no folder here may be the name of a model of the cluster, or one of the hub.
    models = {
        model: absolute(named) if "/" in named and not is_address(named) and os.path.isdir(absolute(named)) else named
        for model, named in config.language_models.items()
    }
    return dataclasses.replace(
        config,
        paths=paths,
        grpc=grpc,
        download_folder=downloads,
        backend_directory=backends,
        language_models=models,
        endpoints=with_absolute_tokenizers(config.endpoints, absolute),
    )


def with_absolute_tokenizers(config: EndpointsConfig, absolute: Callable[[str], str]) -> EndpointsConfig:
    def of(endpoints: dict[str, E]) -> dict[str, E]:
        return {
            name: endpoint
            if endpoint.tokenizer is None
            else dataclasses.replace(endpoint, tokenizer=absolute(endpoint.tokenizer))
            for name, endpoint in endpoints.items()
        }

    return dataclasses.replace(config, embeddings=of(config.embeddings), rerank=of(config.rerank), chat=of(config.chat))


def is_address(path: str) -> bool:
    """Whether a repository is elsewhere, and has to be fetched. A broken address counts as one."""
    try:
        return WeightsUrl.parse(path) is not None
    except WeightsUrlError:
        return True


def repository_problems(config: RepositoryConfig) -> Iterator[tuple[Key, str]]:
    """What is wrong with the files that the configuration names, with their keys. What is in the repositories is not
    looked at: a broken model does not keep the others from being served."""
    missing = [name for name in PACKAGES if config.is_on and importlib.util.find_spec(name) is None]
    if missing:
        yield ("repository",), f"needs the extra `kserve` (pip install 'slipstream[kserve]'): no {', '.join(missing)}"
    for position, path in enumerate(config.paths):
        problem = _why_no_repository(path)
        if problem is not None:
            yield ("repository", "paths", str(position)), problem
    for kind, endpoints in config.endpoints.of_kinds().items():
        for entry, endpoint in endpoints.items():
            tokenizer = getattr(endpoint, "tokenizer", None)
            if tokenizer is not None and not os.path.isdir(tokenizer):  # a name may be too long for Path
                key_of_entry = "repository", "endpoints", kind, entry, "tokenizer"
                yield key_of_entry, f"no such directory: {tokenizer}"
    for key in TLS_FILES:
        name = getattr(config.grpc.tls, key)
        if name is not None and not os.access(name, os.R_OK):
            yield ("repository", "grpc", "tls", key), f"{name}: there is no such file, or it cannot be read"


def _why_no_repository(path: str) -> str | None:
    try:
        if WeightsUrl.parse(path) is not None:
            return None
    except WeightsUrlError as error:
        return str(error)
    if not Path(path).exists():
        return f"no such directory: {path}"
    return None if Path(path).is_dir() else f"not a directory: {path}"
