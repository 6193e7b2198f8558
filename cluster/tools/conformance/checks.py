"""What a decode worker has to do, each as a check over a connection that has been welcomed and has nothing to do."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from slipstream.cluster.tools.conformance.attempt_answer import AttemptAnswer, ConformanceError
from slipstream.cluster.tools.conformance.worker_connection import WorkerConnection
from slipstream.router.protocol.messages import Cancel, Credits, Hello, SamplingParams

Check = Callable[[WorkerConnection], Awaitable[None]]
PROMPT = tuple(range(100, 124))
NUM_AT_ONCE = 8
QUIET_S = 0.5  # in which a cancelled answer must say nothing more
UNKNOWN_CODE = 120  # no message has it


def greedy(max_tokens: int, stop_token_ids: tuple[int, ...] = ()) -> SamplingParams:
    return SamplingParams(
        max_tokens, temperature=0.0, seed=7, stop_token_ids=stop_token_ids, ignore_eos=not stop_token_ids
    )


def hello_of(connection: WorkerConnection) -> Hello:
    assert connection.hello is not None
    return connection.hello


async def has_full_credits(connection: WorkerConnection) -> None:
    """Without work it says that all of its slots are free, and counts every message that has spent credits."""
    hello = hello_of(connection)

    def is_full() -> bool:
        credits = connection.credits or Credits(0, 0, 0, 0)
        return credits.ack_seq == connection.last_seq and credits.free_slots == hello.max_slots

    await connection.until(is_full, f"Credits with ack_seq {connection.last_seq} and free_slots {hello.max_slots}")


async def answers_pings(connection: WorkerConnection) -> None:
    """Ping is answered with Pong of the same nonce."""
    for nonce in (1, 2**40):
        await connection.ping(nonce)


async def ignores_what_is_newer(connection: WorkerConnection) -> None:
    """Messages of unknown kinds, and further fields of known ones, are left out."""
    connection.send_fields(UNKNOWN_CODE, "a message of a later version", 1)
    connection.send_fields(40, 77, "a further field of Ping")
    await connection.until(lambda: 77 in connection.pongs, "Pong(77) after a Ping with a further field")


async def answers_as_long_as_asked(connection: WorkerConnection) -> None:
    """An answer has `max_tokens` tokens, numbered from 0, and one finish, of the reason `length`."""
    for num_tokens in (1, 7):
        answer = connection.ask(f"length-{num_tokens}", PROMPT, greedy(num_tokens))
        await ended_well(connection, answer, "length", num_tokens)


async def serves_several_at_once(connection: WorkerConnection) -> None:
    """As many as it has slots, up to eight; each gets its own answer."""
    num = min(hello_of(connection).max_slots, NUM_AT_ONCE)
    answers = [connection.ask(f"several-{i}", PROMPT[i:], greedy(5 + i)) for i in range(num)]
    await connection.until_ended(*answers)
    for i, answer in enumerate(answers):
        await ended_well(connection, answer, "length", 5 + i)


async def stops_at_tokens(connection: WorkerConnection) -> None:
    """An answer ends with the first of `stop_token_ids`, and says which one it was."""
    whole = connection.ask("stop-0", PROMPT, greedy(8))
    await ended_well(connection, whole, "length", 8)
    stop = whole.token_ids[4]
    answer = connection.ask("stop-1", PROMPT, greedy(8, (stop,)))
    await ended_well(connection, answer, "stop", whole.token_ids.index(stop) + 1)


async def goes_on_with_an_answer(connection: WorkerConnection) -> None:
    """A further attempt, which has the tokens so far, goes on with the same answer."""
    whole = connection.ask("resumed", PROMPT, greedy(9))
    await ended_well(connection, whole, "length", 9)
    rest = connection.ask("resumed", PROMPT, greedy(9), whole.token_ids[:4], attempt=1)
    await ended_well(connection, rest, "length", 5)
    if rest.token_ids != whole.token_ids[4:]:
        raise ConformanceError(f"the whole answer ends with {whole.token_ids[4:]}, the resumed one is {rest.token_ids}")


async def drops_cancelled_answers(connection: WorkerConnection) -> None:
    """A cancelled answer says nothing more and gives its slot back. Unknown ids are ignored."""
    longest = hello_of(connection).max_model_len - len(PROMPT)
    answer = connection.ask("cancelled", PROMPT, greedy(longest))
    await connection.until(lambda: bool(answer.token_ids), "the first token of an answer")
    connection.cancel(answer)
    connection.send(Cancel("never heard of", 3))
    await has_full_credits(connection)
    num_tokens = len(answer.token_ids)
    await asyncio.sleep(QUIET_S)
    connection.check()
    if not answer.has_ended and len(answer.token_ids) > num_tokens:
        raise ConformanceError(f"{len(answer.token_ids) - num_tokens} tokens came after an answer was cancelled")


async def refuses_what_is_too_long(connection: WorkerConnection) -> None:
    """A prompt beyond `max_model_len` ends in Failed that is not retryable."""
    prompt = [PROMPT[i % len(PROMPT)] for i in range(hello_of(connection).max_model_len + 1)]
    answer = connection.ask("too-long", prompt, greedy(4))
    await connection.until_ended(answer)
    if answer.failure is None or answer.failure.retryable:
        raise ConformanceError(
            f"a prompt of {len(prompt)} tokens ended with {answer.failure or answer.finish_reason!r}"
        )


async def ended_well(connection: WorkerConnection, answer: AttemptAnswer, reason: str, num_tokens: int) -> None:
    """Waits for the end. Raises ConformanceError if it is another one."""
    await connection.until_ended(answer)
    if answer.failure is not None:
        raise ConformanceError(f"{answer.request_id} failed: {answer.failure.reason}")
    if (answer.finish_reason, len(answer.token_ids)) != (reason, num_tokens):
        found = f"{answer.finish_reason!r} after {len(answer.token_ids)} tokens"
        raise ConformanceError(f"{answer.request_id} ended with {found}, expected is {reason!r} after {num_tokens}")


CHECKS: tuple[Check, ...] = (
    has_full_credits,
    answers_pings,
    ignores_what_is_newer,
    answers_as_long_as_asked,
    serves_several_at_once,
    stops_at_tokens,
    goes_on_with_an_answer,
    drops_cancelled_answers,
    refuses_what_is_too_long,
)
