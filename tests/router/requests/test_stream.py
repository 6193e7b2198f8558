"""The streams of one event loop, which hand out together what came in a turn."""

from __future__ import annotations

import asyncio

import pytest

from slipstream.router.protocol.generation import Delta, EarlyEnd
from slipstream.router.requests.history import RequestRecord, Timeline
from slipstream.router.requests.stream import GenerationStream, Handouts


def new_streams(count: int) -> list[GenerationStream]:
    def cancel(request_id: str, reason: EarlyEnd) -> None:
        raise AssertionError(f"{request_id} was not to be cancelled")

    handouts = Handouts()
    return [GenerationStream(RequestRecord(f"r{at}", "", 0, 1, Timeline(0.0)), cancel, handouts) for at in range(count)]


def test_what_comes_in_one_turn_is_one_delta_of_each_stream_in_the_order_of_their_first_tokens() -> None:
    async def main() -> None:
        first, second = new_streams(2)
        taken: list[tuple[str, Delta]] = []

        def taker(name: str, last: int) -> asyncio.Task[bool]:
            stream = first if name == "first" else second

            def take(delta: Delta) -> bool:
                taken.append((name, delta))
                return delta[-1][0] != last

            return asyncio.create_task(stream.each(take))

        readers = taker("first", 4), taker("second", 5)
        await asyncio.sleep(0)
        second.deliver((1,), ())
        first.deliver((2,), ())
        second.deliver((3,), ())
        assert not taken
        await asyncio.sleep(0)
        assert taken == [("second", [(1, None), (3, None)]), ("first", [(2, None)])]
        first.deliver((4,), ())
        second.deliver((5,), ())
        assert await asyncio.gather(*readers) == [False, False]
        assert taken[2:] == [("first", [(4, None)]), ("second", [(5, None)])]

    asyncio.run(main())


def test_a_reader_that_fails_fails_alone() -> None:
    async def main() -> None:
        broken, whole = new_streams(2)
        taken: list[Delta] = []

        def fail(delta: Delta) -> bool:
            raise ValueError("no room")

        def take(delta: Delta) -> bool:
            taken.append(delta)
            return False

        readers = asyncio.create_task(broken.each(fail)), asyncio.create_task(whole.each(take))
        await asyncio.sleep(0)
        broken.deliver((1,), ())
        whole.deliver((2,), ())
        with pytest.raises(ValueError, match="no room"):
            await readers[0]
        assert await readers[1] is False
        assert taken == [[(2, None)]]

    asyncio.run(main())
