"""A configuration as it is served, in the state file: the next driver of a guardian goes on with it, whatever has
become of the file that it was read from."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

from pydantic import TypeAdapter, ValidationError

from slipstream.cluster.config.cluster_config import ClusterConfig
from slipstream.cluster.config.former_names import with_former_names, with_new_names
from slipstream.cluster.config.model_entry import ServedModelConfig

# Settings that an earlier Slipstream does not know: the section ("": the top) and the key.
NEW_KEYS = (
    ("", "models"),
    ("", "repository"),
    ("", "budget"),
    ("", "model_cache"),
    ("", "watch"),
    ("model", "aliases"),
    ("model", "watch"),
    ("prefill", "price_per_hour"),
    ("decode", "price_per_hour"),
    ("planner", "objective"),
    ("planner", "swap_s"),
    ("admin_api", "tokens_file"),
    ("budget", "cpus"),
)


def as_plain(config: ClusterConfig) -> dict[str, Any]:
    """The configuration as plain values, which JSON has. Renamed settings have their former names, and new ones are
    left out where they say nothing, so that a driver of an earlier Slipstream can go on with it."""
    plain: dict[str, Any] = _form().dump_python(config, mode="json")
    default = _form().dump_python(ClusterConfig(ServedModelConfig("/")), mode="json")
    for section, key in NEW_KEYS:
        if section and section not in plain:
            continue
        holder, unset = (plain, default) if not section else (plain[section], default[section])
        if holder[key] == unset[key]:
            del holder[key]
    return with_former_names(plain)


def from_plain(plain: dict[str, Any]) -> ClusterConfig | None:
    """The configuration that `as_plain` was given; None if there was none, or if it is that of another Slipstream,
    which has been updated while it served. Files that it names are not looked at."""
    try:
        return _form().validate_json(json.dumps(with_new_names(plain)))
    except ValidationError:
        return None


@cache
def _form() -> TypeAdapter[ClusterConfig]:
    """It is cached, because it takes 40 ms to make."""
    return TypeAdapter(ClusterConfig)
