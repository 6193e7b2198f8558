"""What the fronts have to know of the workers to check a request: lengths, versions and abilities, by model."""

from __future__ import annotations

from slipstream.router.dispatch.service import GenerationService
from slipstream.router.frontends.front_pool import FrontPool


class FrontLimits:
    """Sends the limits of `service` to all of `fronts`."""

    def __init__(self, service: GenerationService, fronts: FrontPool) -> None:
        self._service = service
        self._fronts = fronts

    async def run(self) -> None:
        """Sends them now and whenever the workers are others. Runs until it is cancelled."""
        while True:
            self.send()
            await self._service.worker_port.wait_for_change()

    def send(self) -> None:
        service = self._service
        for name in service.models:
            shares = tuple(service.shares_of(name).items())
            longest, versions = service.max_model_len_of(name), service.versions_of(name)
            self._fronts.send_limits(name, longest, versions, shares, service.abilities_of(name))
