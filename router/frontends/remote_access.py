"""Access to the API as a front process sees it: it knows the keys; the dispatcher's process counts what they use."""

from __future__ import annotations

from concurrent.futures import Executor
from dataclasses import dataclass, replace

from slipstream.router.access.access import Access, Permit
from slipstream.router.access.caller import Caller
from slipstream.router.access.usage import UsageCounts
from slipstream.router.config.access_config import AccessConfig
from slipstream.router.frontends.remote_dispatcher import RemoteDispatcher


@dataclass(frozen=True, slots=True)
class RemotePermit(Permit):
    """`number` is that of its Enter, 0 if it needed none."""

    number: int = 0


class RemoteAccess(Access):
    """Keys are known here, from the same file; their limits and usage are counted in the dispatcher's process."""

    def __init__(self, config: AccessConfig, executor: Executor, dispatcher: RemoteDispatcher) -> None:
        super().__init__(replace(config, usage_file=None), executor)
        self._dispatcher = dispatcher

    async def enter(
        self, caller: Caller, model: str, num_tokens: int, num_sequences: int, is_resumed: bool = False
    ) -> tuple[Permit, str]:
        if caller.key is None:
            return RemotePermit(caller, model, num_tokens, num_sequences), ""
        entered = await self._dispatcher.enter(caller.key.digest, model, num_tokens, num_sequences, is_resumed)
        if entered.refusal is not None:
            raise entered.refusal.exception()
        return RemotePermit(caller, model, num_tokens, num_sequences, number=entered.number), entered.header_lines

    def settle(self, permit: Permit, used: UsageCounts) -> None:
        assert isinstance(permit, RemotePermit)
        self._dispatcher.settle(permit.number, permit.model, used)
