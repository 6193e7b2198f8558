"""Reads a deployment's YAML file strictly: every mistake becomes one sentence with file, line, key, reason and
value."""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Callable
from pathlib import Path

from slipstream.cluster.access.admin_token import read_token
from slipstream.cluster.access.token_file import read_tokens
from slipstream.cluster.config.cluster_config import ClusterConfig
from slipstream.cluster.config.former_names import with_new_keys
from slipstream.cluster.config.loading.model_settings import models_by_key, problems_of_models, resolve_models
from slipstream.cluster.config.loading.repository_settings import repository_problems, with_absolute_files
from slipstream.cluster.config.loading.tls_settings import tls_problems, with_absolute_certificates
from slipstream.cluster.config.setting_errors import settings_at, validated
from slipstream.cluster.config.settings_file import ConfigError, Key, SettingsFile
from slipstream.cluster.planner.planner_loading import load_planner
from slipstream.cluster.planner.pool_prices import PoolPrices
from slipstream.cluster.planner.shared.shared_loading import load_shared_planner, shares_of
from slipstream.cluster.repository.downloads import Downloads
from slipstream.cluster.repository.model_location import ModelFiles, with_absolute_path
from slipstream.cluster.terminal import console
from slipstream.kv_transfer.ucx.ucx_availability import MISSING, has_ucx
from slipstream.router.access.entry_list import KeyFileError
from slipstream.router.access.key_file import read_keys


def load_config(
    path: Path, warn: Callable[[str], None] = console.warning, files: ModelFiles | None = None
) -> ClusterConfig:
    """Reads and checks a file. Paths of models may be relative to the file, and are made absolute; a remote model gets
    the directory that `files` makes for it (by default: that of the host's cache, after a download). `warn` is called
    with a sentence for each setting that the file gives under a former name. Raises ConfigError."""
    file, warnings = with_new_keys(SettingsFile.read(path, settings_at(())))
    for warning in warnings:
        warn(warning)
    config = validated(file)
    cache = with_absolute_path(config.model_cache, path.resolve().parent)
    config = dataclasses.replace(config, model_cache=cache)
    files = Downloads(console.Console(sys.stderr)) if files is None else files
    config = resolve_models(file, config, files)
    found: list[tuple[Key, str]] = list(problems_of_models(config))
    try:
        config = _with_absolute_paths(config, path.resolve().parent)
    except ValueError as error:  # made absolute, a path may be too long for a Unix socket
        setting, _, reason = str(error).partition(" ")
        raise ConfigError([f"{file.place(('router', 'http', setting))}: {reason}"]) from None
    for key, check in (
        (("router", "access", "keys_file"), _check_keys),
        (("router", "access", "usage_file"), _check_usage),
        (("router", "store", "directory"), _check_store),
        (("admin_api", "token_file"), _check_token),
        (("admin_api", "tokens_file"), _check_tokens),
        (("planner", "class_name"), _check_planner),
        (("planner", "objective"), _check_objective),
        (("kv_transfer", "transport"), _check_transport),
        (("budget", "workers"), _check_workers),
        (("budget", "gpus"), _check_gpus),
    ):
        try:
            problem = check(config)
        except OSError as error:  # a name that is too long for the system
            problem = f"{error.filename}: {error.strerror}"
        if problem:
            found.append((key, problem))
    found.extend(tls_problems(config))
    found.extend(repository_problems(config.repository))
    if found:
        raise ConfigError([f"{file.place(key)}: {problem}" for key, problem in found])
    return config


def _with_absolute_paths(config: ClusterConfig, folder: Path) -> ClusterConfig:
    """Makes the router's files absolute: they are named relative to the configuration, not to where the router runs."""

    def absolute(name: str | None) -> str | None:
        return None if name is None else os.path.normpath(folder / os.path.expanduser(name))

    config = with_absolute_certificates(config, folder)
    access = config.router.access
    access = dataclasses.replace(access, keys_file=absolute(access.keys_file), usage_file=absolute(access.usage_file))
    http = dataclasses.replace(config.router.http, unix_socket=absolute(config.router.http.unix_socket))
    admin_api = dataclasses.replace(
        config.admin_api,
        token_file=absolute(config.admin_api.token_file),
        tokens_file=absolute(config.admin_api.tokens_file),
    )
    store = dataclasses.replace(config.router.store, directory=absolute(config.router.store.directory))
    router = dataclasses.replace(config.router, access=access, http=http, store=store)
    repository = with_absolute_files(config.repository, folder)
    return dataclasses.replace(config, router=router, admin_api=admin_api, repository=repository)


def _check_keys(config: ClusterConfig) -> str | None:
    name = config.router.access.keys_file
    try:
        keys = read_keys(Path(name)) if name is not None else []
    except KeyFileError as error:
        return str(error)
    return None if name is None or keys else f"{name}: no key is in it, so no client could use the cluster"


def _check_tokens(config: ClusterConfig) -> str | None:
    name = config.admin_api.tokens_file
    try:
        if name is not None:
            read_tokens(Path(name))
    except KeyFileError as error:
        return str(error)
    return None


def _check_usage(config: ClusterConfig) -> str | None:
    name = config.router.access.usage_file
    if name is None:
        return None
    if Path(name).is_dir():
        return f"{name}: must be a file, is a folder"
    return None if Path(name).parent.is_dir() else f"{name}: there is no folder {Path(name).parent}"


def _check_store(config: ClusterConfig) -> str | None:
    name = config.router.store.directory
    return f"{name}: must be a folder, is a file" if name is not None and Path(name).is_file() else None


def _check_token(config: ClusterConfig) -> str | None:
    try:
        read_token(config.admin_api)
    except ValueError as error:
        return str(error)
    return None


def _check_planner(config: ClusterConfig) -> str | None:
    return _planner_problem(config, "class_name: ")


def _check_objective(config: ClusterConfig) -> str | None:
    return _planner_problem(config, "objective: ")


def _planner_problem(config: ClusterConfig, key: str) -> str | None:
    """What is wrong with this key of the planner."""
    if config.planner.class_name is None and config.planner.objective == "workers":
        return None
    try:
        if config.models or not config.has_model:
            load_shared_planner(config.planner, shares_of(config), config.budget)
        else:
            load_planner(config.planner, PoolPrices(config.prefill.price_per_hour, config.decode.price_per_hour))
    except ValueError as error:
        return str(error).removeprefix(key) if str(error).startswith(key) else None
    return None


def _check_transport(config: ClusterConfig) -> str | None:
    transport = config.kv_transfer.transport
    if transport == "ucx" and not has_ucx():
        return MISSING
    if transport != "nccl":
        return None
    for key, alone in models_by_key(config):
        problem = _check_nccl(alone, "".join(f"{part}." for part in key))
        if problem is not None:
            return problem
    return None


def _check_nccl(config: ClusterConfig, place: str) -> str | None:
    devices = {role: pool.engine.device for role, pool in config.pools()}
    if set(devices.values()) == {"cpu", "cuda"}:
        said = " and ".join(f"{place}{role}.engine.device is {device}" for role, device in devices.items())
        return f"nccl moves pages between GPUs or between CPUs, got nccl where {said}"
    for role, pool in config.pools():
        if pool.engine.device != "cpu" and pool.num_gpus is not None and 0 < pool.num_gpus < 1:
            return f"nccl needs a GPU for each rank, got nccl where {place}{role}.num_gpus is {pool.num_gpus:g}"
    return None


def _check_workers(config: ClusterConfig) -> str | None:
    most, asked = config.budget.workers, sum(pool.replicas for one in config.each() for _, pool in one.pools())
    if most is None or asked <= most:
        return None
    return f"must be at least the {asked} workers with which the models begin, got {most}"


def _check_gpus(config: ClusterConfig) -> str | None:
    pools = [pool for one in config.each() for _, pool in one.pools()]
    most, asked = config.budget.gpus, sum(pool.replicas * pool.tp * (pool.num_gpus or 0) for pool in pools)
    if most is None or asked <= most:
        return None
    return f"must be at least the {asked:g} GPUs with which the models begin, got {most:g}"
