"""The driver's connection to the Ray that its cluster runs on."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import chdir, contextmanager
from dataclasses import dataclass

import ray

from slipstream.cluster.ray.bundles import Resources
from slipstream.cluster.ray.local_ray import RayFailed
from slipstream.router.process.module_command import import_root

ANSWER_WITHIN_S = 5.0


@dataclass(frozen=True, slots=True)
class RaySession:
    """A connection to Ray. `is_own`: no other program uses this Ray, and it has one node and always will."""

    is_own: bool
    node_id: str
    resources: Resources

    @property
    def may_span_nodes(self) -> bool:
        """Whether processes may run on several nodes. A Ray that is not ours may grow, even if it has one node now."""
        return not self.is_own


def check_answers(address: str) -> None:
    """Raises RayFailed if nothing listens at the address. (Ray itself would silently try for two minutes.)"""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not port.isdigit():
        return  # `auto`, or another form that only Ray understands
    try:
        socket.create_connection((host.strip("[]"), int(port)), ANSWER_WITHIN_S).close()
    except (OSError, ValueError, OverflowError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise RayFailed(f"no Ray could be reached at {address}: {reason}") from error


@contextmanager
def connected(address: str, *, is_own: bool) -> Iterator[RaySession]:
    """Raises RayFailed."""
    if not is_own:
        check_answers(address)
    try:
        # No namespace and no runtime_env: a submitted job has its own, and otherwise all processes share our files.
        # Ray has its workers look for modules in the driver's working directory first. They are to find the Slipstream
        # of the driver, and not a module of the same name in that directory.
        with chdir(import_root()):
            ray.init(address=address, log_to_driver=False, configure_logging=False)
    except (ConnectionError, RuntimeError, OSError, ValueError, TimeoutError) as error:
        text = " ".join(str(error).split()) or type(error).__name__
        raise RayFailed(f"no Ray could be reached at {address}: {text[:300]}") from error
    try:
        resources: Resources = ray.cluster_resources()  # type: ignore[no-untyped-call]
        yield RaySession(
            is_own=is_own,
            node_id=ray.get_runtime_context().get_node_id(),
            resources=resources,
        )
    finally:
        ray.shutdown()
