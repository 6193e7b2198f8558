"""Requests that come together are prepared stage by stage."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from slipstream.router.api.openai.generation_batch import GenerationBatch


async def prepare(name: str, convoy: GenerationBatch, steps: list[str]) -> None:
    with convoy:
        steps.append(f"{name} parsed")
        await convoy.next_stage()
        steps.append(f"{name} tokenised")
        await convoy.next_stage()
        steps.append(f"{name} placed")
        await asyncio.sleep(0)


async def steps_in_one_turn(convoy: GenerationBatch) -> list[str]:
    """What a request that comes now gets done before anybody else has a turn."""
    steps: list[str] = []
    alone = asyncio.create_task(prepare("a", convoy, steps))
    await asyncio.sleep(0)
    seen = list(steps)
    await alone
    return seen


def test_every_stage_is_done_for_all_that_came_together_before_the_next_one_begins() -> None:
    async def main() -> list[str]:
        convoy, steps = GenerationBatch(), list[str]()
        with convoy:  # somebody is being served already
            await asyncio.gather(prepare("a", convoy, steps), prepare("b", convoy, steps))
        return steps

    steps = asyncio.run(main())
    assert steps == ["a parsed", "b parsed", "a tokenised", "b tokenised", "a placed", "b placed"]


def test_who_is_alone_is_not_held_up() -> None:
    async def main() -> None:
        convoy = GenerationBatch()
        with suppress(ValueError), convoy:  # who fails leaves the convoy, too
            raise ValueError
        for _ in range(2):
            assert await steps_in_one_turn(convoy) == ["a parsed", "a tokenised", "a placed"]
        with convoy:
            assert await steps_in_one_turn(convoy) == ["a parsed"]

    asyncio.run(main())
