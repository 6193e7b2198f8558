"""Runs one level of load against a server, and collects the answers as seen by clients."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Generic, Protocol, TypeVar

from slipstream.cluster.tools.bench.client.client_answer import ClientAnswer
from slipstream.cluster.tools.bench.client.conversation import Conversation
from slipstream.cluster.tools.bench.load.load_level import Extent, LoadLevel

MAX_BACKOFF_S = 1.0  # the longest pause of a client whose requests fail
MAX_RETRY_AFTER_S = 10.0  # the longest pause that a server may ask for
NO_CONNECTION = ("connection refused", "no connection")
LATE_S = 0.01
T = TypeVar("T")
T_contra = TypeVar("T_contra", contravariant=True)


class TurnSender(Protocol[T_contra]):
    async def ask(self, turn: T_contra, before: Sequence[tuple[T_contra, str]], keep_text: bool) -> ClientAnswer:
        """Sends a turn, with those before it and the text of their answers. Does not raise."""


@dataclass(slots=True)
class LevelRun:
    """The results of a level. `answers` are those that ended; `num_unfinished` counts those that were cut off at the
    end, which count nowhere else. `broke_off` says why the level ended early, if it did."""

    level: LoadLevel
    answers: list[ClientAnswer] = field(default_factory=list)
    num_started: int = 0
    num_running: int = 0
    num_unfinished: int = 0
    num_late: int = 0  # begun more than `LATE_S` late, because the client was busy or at its limit
    was_interrupted: bool = False
    broke_off: str = ""
    begun_s: float = 0.0
    unix_s: float = 0.0  # when it began, for people

    @property
    def num_errors(self) -> int:
        return sum(not answer.is_good for answer in self.answers)


async def run_level(
    sender: TurnSender[T],
    conversations: Iterator[Conversation[T]],
    level: LoadLevel,
    extent: Extent,
    stop: asyncio.Event,
    seed: int,
    run: LevelRun | None = None,
) -> LevelRun:
    """Runs a level until its extent is reached, the conversations are used up, or `stop` is set, upon which answers are
    not waited for. `run` can be watched meanwhile."""
    run = run if run is not None else LevelRun(level)
    run.begun_s, run.unix_s = time.perf_counter(), time.time()
    users = _Users(sender, conversations, run, extent)
    asking = asyncio.create_task(_closed_loop(users, level) if level.is_closed else _open_loop(users, level, seed))
    stopped = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait({asking, stopped}, timeout=extent.duration_s, return_when=asyncio.FIRST_COMPLETED)
        users.over.set()
        if not asking.done() and not stop.is_set():  # the time is up: running requests may end
            if not level.is_closed:
                asking.cancel()
            await asyncio.wait({asking, stopped}, timeout=extent.grace_s, return_when=asyncio.FIRST_COMPLETED)
        if users.running and not stop.is_set():
            ending = asyncio.create_task(asyncio.wait(users.running))
            await asyncio.wait([ending, stopped], timeout=extent.grace_s, return_when=asyncio.FIRST_COMPLETED)
            ending.cancel()
        run.was_interrupted = stop.is_set()
    finally:
        run.num_unfinished = run.num_running
        tasks = {asking, stopped, *users.running}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    if asking.done() and not asking.cancelled() and (error := asking.exception()) is not None:
        raise error
    return run


class _Users(Generic[T]):
    """The users, who have conversations until the level is `over` or all its requests are used up."""

    def __init__(
        self, sender: TurnSender[T], conversations: Iterator[Conversation[T]], run: LevelRun, extent: Extent
    ) -> None:
        self._asker = sender
        self.conversations = conversations
        self.run = run
        self.quota = extent.num_requests
        self.over = asyncio.Event()
        self._gone_s = extent.gone_s
        self._away_since_s: float | None = None  # since when no client could connect
        self.running: set[asyncio.Task[None]] = set()

    @property
    def is_spent(self) -> bool:
        return self.over.is_set() or (self.quota is not None and self.run.num_started >= self.quota)

    async def pause(self, seconds: float) -> None:
        """Pauses. The pause is cut short if the level ends, and left out if there are no more requests to send."""
        if self.is_spent:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.over.wait()

    async def converse(self, conversation: Conversation[T], due_s: float | None = None) -> ClientAnswer | None:
        """Sends all turns of a conversation. A failed answer ends the conversation and is returned."""
        before: list[tuple[T, str]] = []
        for number, turn in enumerate(conversation.turns):
            if self.is_spent:
                return None
            is_last = number == len(conversation.turns) - 1
            self.run.num_started += 1
            self.run.num_running += 1
            if due_s is not None and time.perf_counter() - due_s > LATE_S:
                self.run.num_late += 1
            answer = await self._asker.ask(turn, before, keep_text=not is_last)
            self.run.num_running -= 1
            answer.due_s, due_s = due_s, None
            answer.summarise_gaps()
            self.run.answers.append(answer)
            self._look_out(answer)
            if not answer.is_good:
                return answer
            before.append((turn, answer.text))
            answer.text = ""
        return None

    def _look_out(self, answer: ClientAnswer) -> None:
        """Notes whether the server could be reached, and ends the level if it has been gone for too long."""
        if answer.kind not in NO_CONNECTION:
            self._away_since_s = None
        elif self._away_since_s is None:
            self._away_since_s = answer.ended_s
        elif answer.ended_s - self._away_since_s >= self._gone_s and not self.over.is_set():
            self.run.broke_off = f"no connection for {self._gone_s:g} s ({answer.error or answer.kind})"
            self.over.set()


async def _closed_loop(users: _Users[T], level: LoadLevel) -> None:
    async def user() -> None:
        num_failures = 0
        while not users.is_spent:
            conversation = next(users.conversations, None)
            if conversation is None:
                return
            failed = await users.converse(conversation)
            if failed is None:
                num_failures = 0
                continue
            num_failures += 1  # so that a server which refuses everything does not get a thousand requests per second
            asked_for_s = min(failed.retry_after_s or 0.0, MAX_RETRY_AFTER_S)
            await users.pause(max(min(0.01 * 2 ** min(num_failures, 10), MAX_BACKOFF_S), asked_for_s))

    async with asyncio.TaskGroup() as group:
        for _ in range(level.concurrency or 1):
            group.create_task(user())


async def _open_loop(users: _Users[T], level: LoadLevel, seed: int) -> None:
    room = asyncio.Semaphore(level.concurrency) if level.concurrency is not None else None

    async def user(conversation: Conversation[T], due_s: float) -> None:
        try:
            await users.converse(conversation, due_s)
        finally:
            if room is not None:
                room.release()

    begun_s = users.run.begun_s
    times_s = level.times_s(seed) if level.rate is not None else itertools.repeat(None)
    num_conversations = itertools.count()
    for conversation, planned_s in zip(users.conversations, times_s, strict=False):
        if users.is_spent or (users.quota is not None and next(num_conversations) >= users.quota):
            break
        at_s = planned_s if planned_s is not None else conversation.at_s or 0.0
        await asyncio.sleep(begun_s + at_s - time.perf_counter())
        if room is not None:
            await room.acquire()
        task = asyncio.create_task(user(conversation, begun_s + at_s))
        users.running.add(task)
        task.add_done_callback(users.running.discard)
    if users.running:
        await asyncio.wait(users.running)


async def warm_up(
    sender: TurnSender[T],
    conversations: Iterator[Conversation[T]],
    level: LoadLevel,
    extent: Extent,
    stop: asyncio.Event,
) -> LevelRun:
    """Sends requests that are not counted, as many at a time as in the level."""
    gentle = replace(level, rate=None, concurrency=level.concurrency or min(extent.num_warm_up, 8))
    whole = replace(extent, num_requests=extent.num_warm_up, duration_s=None)
    return await run_level(sender, conversations, gentle, whole, stop, 0)
