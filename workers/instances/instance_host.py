"""The instance host as a class, for the Ray actor and for the plain program."""

from __future__ import annotations

from slipstream.workers.instances.host_config import InstanceHostConfig


class InstanceHost:
    """Starts and watches the instances of one machine. `run` returns after `stop`, or raises HostRefused if the router
    does not accept its token or protocol."""

    def __init__(self, config: InstanceHostConfig) -> None:
        raise NotImplementedError

    async def run(self) -> None:
        """Connects to the router, again and again, and obeys it. Before it returns all instances have ended."""
        raise NotImplementedError

    def stop(self, grace_s: float = 10.0) -> None:
        """Lets the instances finalize, kills those that have not ended after `grace_s`, and ends `run`. For the event
        loop's thread; a second call kills at once."""
        raise NotImplementedError

    @property
    def num_instances(self) -> int:
        raise NotImplementedError
