"""All checks of a worker, one after the other, over the connections that they need."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from functools import partial

from slipstream.cluster.tools.conformance.attempt_answer import ConformanceError
from slipstream.cluster.tools.conformance.checks import CHECKS, PROMPT, ended_well, greedy, has_full_credits, hello_of
from slipstream.cluster.tools.conformance.router_end import START_S, RouterEnd
from slipstream.cluster.tools.conformance.worker_connection import WorkerConnection
from slipstream.router.protocol.messages import Drain, Rejected

NOT_MESSAGEPACK = b"\xc1"  # a byte that no value begins with


@dataclass(frozen=True, slots=True)
class CheckResult:
    """`problem`: None if the worker keeps the rule; "" in `skipped` if it was tried."""

    name: str
    rule: str
    problem: str | None = None
    skipped: str = ""


async def run_checks(end: RouterEnd, address: str) -> AsyncIterator[CheckResult]:
    """The results as they come. After the first connection has failed there are no others."""
    await end.start_worker(address)
    try:
        connection = await end.welcomed(START_S)
    except ConformanceError as error:
        yield CheckResult("greets", "Its Hello is one that a router accepts, and Credits follow Welcome.", str(error))
        return
    yield CheckResult("greets", "Its Hello is one that a router accepts, and Credits follow Welcome.")
    role = hello_of(connection).role
    for check in CHECKS:
        name, rule = check.__name__, (check.__doc__ or "").strip()
        if role != "decode" and check not in CHECKS[:3]:
            yield CheckResult(name, rule, skipped=f"it is a {role} worker")
            continue
        if connection.lost is not None:
            try:
                connection = await end.welcomed()
            except ConformanceError as error:
                yield CheckResult(name, rule, str(error))
                return
        yield await result_of(name, rule, partial(at_rest, check, connection))
    for name, step in (("comes_back", comes_back), ("drains", drains), ("obeys_rejection", obeys_rejection)):
        rule = (step.__doc__ or "").strip()
        if step is obeys_rejection and not end.can_start:
            yield CheckResult(name, rule, skipped="the worker was started by hand")
            continue
        yield await result_of(name, rule, partial(step, end, address))


async def at_rest(check: Callable[[WorkerConnection], Awaitable[None]], connection: WorkerConnection) -> None:
    """A check, after which everything is given back."""
    await check(connection)
    await has_full_credits(connection)


async def result_of(name: str, rule: str, run: Callable[[], Awaitable[None]]) -> CheckResult:
    try:
        await run()
    except ConformanceError as error:
        return CheckResult(name, rule, str(error))
    return CheckResult(name, rule)


async def comes_back(end: RouterEnd, address: str) -> None:
    """After a lost connection, and after bytes that are no message, it connects again with a later epoch and full
    credits."""
    before = end.current
    epoch = hello_of(before).worker.epoch
    if hello_of(before).role == "decode":
        before.ask("lost", PROMPT, greedy(1000))
    before.protocol.abort()
    connection = await end.welcomed()
    if hello_of(connection).worker.epoch <= epoch:
        raise ConformanceError(f"the epoch is {hello_of(connection).worker.epoch} after {epoch}")
    await has_full_credits(connection)
    connection.protocol.send_raw(NOT_MESSAGEPACK)
    await connection.until_lost()
    await has_full_credits(await end.welcomed())


async def drains(end: RouterEnd, address: str) -> None:
    """After Drain it finishes what runs and closes the connection; started here, it exits with 0."""
    connection = end.current
    if hello_of(connection).role == "decode":
        answer = connection.ask("drained", PROMPT, greedy(50))
        connection.send(Drain())
        await ended_well(connection, answer, "length", 50)
    else:
        connection.send(Drain())
    await connection.until_lost()
    if end.can_start and (code := await end.until_exited()) != 0:
        raise ConformanceError(f"the worker exited with {code}")


async def obeys_rejection(end: RouterEnd, address: str) -> None:
    """After Rejected it exits, with an error, and does not come back."""
    await end.start_worker(address)
    connection = await end.greeted(START_S)
    connection.send(Rejected("this is a test of conformance"))
    connection.protocol.close()
    if await end.until_exited() == 0:
        raise ConformanceError("the worker exited with 0")
