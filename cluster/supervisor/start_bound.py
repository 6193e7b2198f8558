"""The time in which a cluster must be up."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

from slipstream.cluster.state.cluster_state import MemberStatus
from slipstream.router.process.background_task import in_background

LOOK_EVERY_S = 1.0


@asynccontextmanager
async def start_bound(
    seconds: float, members: Callable[[], Sequence[MemberStatus]], is_loading: Callable[[], bool] = bool
) -> AsyncIterator[None]:
    """Raises TimeoutError after so many seconds, to which those do not count in which a member downloads its model, or
    in which tensor models are loaded (`is_loading`): they depend on the models."""
    async with asyncio.timeout(seconds) as bound:
        async with in_background(_postpone(bound, members, is_loading)):
            yield


async def _postpone(
    bound: asyncio.Timeout, members: Callable[[], Sequence[MemberStatus]], is_loading: Callable[[], bool]
) -> None:
    while (when := bound.when()) is not None:
        await asyncio.sleep(LOOK_EVERY_S)
        if bound.expired():
            return
        if is_loading() or any(member.state == "fetching" for member in members()):
            bound.reschedule(when + LOOK_EVERY_S)
