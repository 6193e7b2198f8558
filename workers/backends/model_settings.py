"""With how many threads an instance computes."""

from __future__ import annotations

from slipstream.router.process.container_limits import num_cores
from slipstream.workers.backends.backend import BackendError, ModelContext


def default_threads(model: ModelContext) -> int:
    """The cores of this host, shared by the instances of the model that compute on them. All instances of a model are
    busy when it matters; more threads than cores would wait for each other."""
    return max(1, num_cores() // max(1, num_cpu_instances(model)))


def num_cpu_instances(model: ModelContext) -> int:
    groups = model.config.get("instance_group", ())
    return sum(int(group.get("count", 1)) for group in groups if group.get("kind") != "KIND_GPU")


def whole_number(model: ModelContext, name: str, text: str | None) -> int:
    """The value of a setting; 0: there is none. Raises BackendError."""
    if not text:
        return 0
    try:
        return int(text)
    except ValueError:
        reason = f"model '{model.name}': {name} must be a whole number, got {text!r}"
        raise BackendError(reason, "INVALID_ARG") from None


def truth(model: ModelContext, name: str, text: str | None, default: bool) -> bool:
    """The value of a setting that is on or off. Raises BackendError."""
    if not text:
        return default
    known = {"1": True, "true": True, "on": True, "0": False, "false": False, "off": False}
    if text.lower() not in known:
        raise BackendError(f"model '{model.name}': {name} must be true or false, got {text!r}", "INVALID_ARG")
    return known[text.lower()]
