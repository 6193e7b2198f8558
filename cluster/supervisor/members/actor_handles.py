"""The actors of a member as the driver handles them: it starts them, learns why they ended, and ends them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from typing import Any

import ray
from ray.exceptions import ActorUnavailableError, RayActorError, RayError, RayTaskError

from slipstream.cluster.supervisor.members.actors import ProcessHost
from slipstream.cluster.supervisor.members.deployment import Deployment
from slipstream.workers.telemetry.worker_report import LEADER_GONE

MAX_CALLS = 32  # at a time: `run` and `wanted_models` last for ever, removals of models for as long as their requests
STOP_PATIENCE_S = 2.0
LEAVE_PATIENCE_S = 10.0
REASON_PATIENCE_S = 1.0  # the leader says what it has heard of a rank that died after half a second
ENDED = "ended by itself"  # why a group is gone whose processes have returned from `run`


def start_actor(
    cls: type[ProcessHost], deployment: Deployment, name: str, resources: dict[str, float], strategy: object
) -> Any:
    actor_class: Any = ray.remote(cls)
    return actor_class.options(
        num_cpus=resources.get("CPU", 0.0),
        num_gpus=resources.get("GPU", 0.0),
        resources={kind: amount for kind, amount in resources.items() if kind not in ("CPU", "GPU")},
        scheduling_strategy=strategy,
        max_restarts=0,  # the supervisor restarts it, not Ray, because a new incarnation needs new addresses
        max_concurrency=MAX_CALLS,
    ).remote(name, deployment.log_path(name), deployment.config.log.format)


async def first_death(runs: Sequence[Awaitable[object]]) -> str:
    """Waits until the first of some pending `run` calls ends, and says why. When one rank dies, the others die of that.
    One with a reason of its own says more than "is gone", and gets a moment to say it."""
    waiting = [asyncio.ensure_future(_end_of(run)) for run in runs]
    try:
        done, pending = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        until_s = asyncio.get_running_loop().time() + REASON_PATIENCE_S
        while pending and all(_is_consequence(task.result()) for task in done):
            more, pending = await asyncio.wait(
                pending,
                timeout=until_s - asyncio.get_running_loop().time(),
                return_when=asyncio.FIRST_COMPLETED,
            )
            if not more:
                break
            done |= more
        return min((task.result() for task in done), key=_is_consequence)
    finally:
        for task in waiting:
            task.cancel()


def _is_consequence(reason: str) -> bool:
    return reason.startswith("process") or LEADER_GONE in reason


async def _end_of(run: Awaitable[object]) -> str:
    try:
        await run
    except RayError as error:
        return reason_of(error)
    return ENDED


def reason_of(error: RayError) -> str:
    """One sentence about why a call into a process failed."""
    if isinstance(error, RayTaskError) and error.cause is not None:
        cause = error.cause
        text = " ".join(str(cause).split()) or type(cause).__name__
        # Our own errors and those of the operating system are sentences; others are understandable only with their
        # type.
        ours = type(cause).__module__.startswith("slipstream.") or isinstance(cause, OSError)
        return text if ours else f"{type(cause).__name__}: {text}"
    text = " ".join(str(error).split())
    if isinstance(error, ActorUnavailableError):  # the process may well be alive, but is not heard of any more
        return "the connection of Ray's driver to the process broke"
    if isinstance(error, RayActorError):
        if "OUT_OF_MEMORY" in text or "running low on memory" in text:
            return "process was killed because the machine ran out of memory"
        if "connection error" in text or "worker process has died" in text:
            return "process is gone (killed, or crashed in native code)"
    return f"process is gone: {text[:300]}"


async def have_ended(runs: Sequence[Awaitable[object]]) -> bool:
    """Whether all `run` calls, of which one has ended, return normally within a moment."""
    try:
        async with asyncio.timeout(LEAVE_PATIENCE_S):
            return all(reason == ENDED for reason in await asyncio.gather(*map(_end_of, runs)))
    except TimeoutError:
        return False


async def stop_actor(actor: Any, runs: list[Any], grace_s: float = 0.0) -> None:
    """Asks an actor to stop, which may take `grace_s`, and waits a little longer for the end of its `run`. (If it does
    not listen, it is killed later.)"""
    try:
        async with asyncio.timeout(grace_s + STOP_PATIENCE_S):
            await (actor.stop.remote(grace_s) if grace_s else actor.stop.remote())
            await asyncio.gather(*(_end_of(run) for run in runs))
    except (TimeoutError, RayError):
        return


def end_by_force(actors: list[Any]) -> None:
    for actor in actors:
        if actor is not None:
            ray.kill(actor)
