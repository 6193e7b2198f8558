"""A change of the number of instances, until it is made."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from slipstream.router.model_repository.repository_error import LoadError


class InstanceChange:
    """`done` once all instances that have been added serve, or one of them has failed (LoadError)."""

    def __init__(self, added: Iterable[str]) -> None:
        self._awaited = set(added)
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._end_if_done()

    def served(self, name: str) -> None:
        self._awaited.discard(name)
        self._end_if_done()

    def failed(self, name: str, cause: str) -> None:
        if name in self._awaited:
            self.give_up(cause)

    def give_up(self, cause: str) -> None:
        if not self.done.done():
            self.done.set_exception(LoadError(cause))

    def _end_if_done(self) -> None:
        if not self._awaited and not self.done.done():
            self.done.set_result(None)
