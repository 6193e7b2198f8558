"""Requests that come together are prepared stage by stage."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from slipstream.router.api.openai.preparation_stages import PreparationStages


async def prepare(name: str, stages: PreparationStages, steps: list[str]) -> None:
    with stages:
        steps.append(f"{name} parsed")
        await stages.next_stage()
        steps.append(f"{name} tokenised")
        await stages.next_stage()
        steps.append(f"{name} placed")
        await asyncio.sleep(0)


async def steps_in_one_turn(stages: PreparationStages) -> list[str]:
    """What a request that comes now gets done before another request has a turn."""
    steps: list[str] = []
    alone = asyncio.create_task(prepare("a", stages, steps))
    await asyncio.sleep(0)
    seen = list(steps)
    await alone
    return seen


def test_every_stage_is_done_for_all_that_came_together_before_the_next_one_begins() -> None:
    async def main() -> list[str]:
        stages, steps = PreparationStages(), list[str]()
        with stages:  # another request is being served already
            await asyncio.gather(prepare("a", stages, steps), prepare("b", stages, steps))
        return steps

    steps = asyncio.run(main())
    assert steps == ["a parsed", "b parsed", "a tokenised", "b tokenised", "a placed", "b placed"]


def test_a_single_request_is_not_held_up() -> None:
    async def main() -> None:
        stages = PreparationStages()
        with suppress(ValueError), stages:  # a request that fails leaves, too
            raise ValueError
        for _ in range(2):
            assert await steps_in_one_turn(stages) == ["a parsed", "a tokenised", "a placed"]
        with stages:
            assert await steps_in_one_turn(stages) == ["a parsed"]

    asyncio.run(main())
