"""What a start on this machine would refuse, beside what is wrong with the configuration itself: sentences of which
most begin with the key. With an existing Ray cluster only its own machines know."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from slipstream.cluster.config.cluster_config import ClusterConfig
from slipstream.cluster.config.loading.config_warnings import Machine
from slipstream.cluster.config.loading.model_settings import models_by_key
from slipstream.cluster.driver.listeners import listeners, why_no_unix_socket, why_not_there
from slipstream.cluster.ray.bundles import CannotPlace, all_pools, check_fits, check_one_host
from slipstream.cluster.ray.local_ray import offered_cpus, ray_address
from slipstream.cluster.state import clusters_here, host_folders
from slipstream.router.extensions.loading import find_extension

GPU_DEVICE = re.compile(r"nvidia\d+")


def taken_addresses(config: ClusterConfig) -> Iterator[str]:
    """Where this machine cannot listen now."""
    if ray_address(config.ray) is not None:
        return
    states = clusters_here.read_all(host_folders.run_folder())
    if not any(state.name == config.name for state in states):  # whose ports these may be
        yield from filter(None, (*map(why_not_there, listeners(config)), why_no_unix_socket(config)))


def lacks_here(config: ClusterConfig, machine: Machine, devices: Path = Path("/dev")) -> Iterator[str]:
    """What this machine has too little of, or not at all. `devices` is where the device files are."""
    if ray_address(config.ray) is not None:
        return
    yield from missing_extensions(config)
    num_gpus = config.ray.num_gpus
    if num_gpus is None:
        num_gpus = sum(GPU_DEVICE.fullmatch(path.name) is not None for path in devices.glob("nvidia*"))
    try:
        pools = all_pools(config, num_gpus)
        check_one_host(pools)
        check_fits(pools, {"CPU": offered_cpus(config), "GPU": num_gpus})
    except CannotPlace as error:
        yield str(error)
    for key, alone in models_by_key(config):
        place = "".join(f"{part}." for part in key)
        for role, pool in alone.pools():
            engine, size = pool.engine, pool.engine.kv_cache_mib
            is_on_host = engine.device == "cpu" or num_gpus == 0
            if not pool.replicas or not is_on_host or engine.num_pages is not None or size == "auto":
                continue
            if size > machine.memory_mib:
                yield f"{place}{role}.engine.kv_cache_mib: must fit into memory, got {size}, and {machine.memory}"


def missing_extensions(config: ClusterConfig) -> Iterator[str]:
    """Extensions of the router that are not installed. They are loaded by the router, not here."""
    for name in config.router.extensions:
        try:
            find_extension(name)
        except ValueError as error:
            yield str(error)
