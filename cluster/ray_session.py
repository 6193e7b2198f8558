"""The connection of a driver to the Ray that its cluster runs on."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import ray

from slipstream.cluster.own_ray import RayFailed
from slipstream.cluster.placement import Resources

ANSWER_WITHIN_S = 5.0


@dataclass(frozen=True, slots=True)
class RaySession:
    """`is_own`: nobody else uses this Ray, it has one node, and that will not change."""

    is_own: bool
    node_id: str
    resources: Resources

    @property
    def may_span_nodes(self) -> bool:
        """A Ray that is not ours may have one node now and others tomorrow."""
        return not self.is_own


def check_answers(address: str) -> None:
    """Raises RayFailed where nobody listens: Ray itself would try for two minutes, in silence."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not port.isdigit():
        return  # `auto`, or what only Ray knows
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
        # No namespace, no runtime_env: a job that was submitted has its own, and others share our file system.
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
