"""Requests that come together are prepared stage by stage."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from slipstream.router.api.generation.preparation_stages import MAX_A_TURN, PreparationStages


async def prepare(name: str, stages: PreparationStages, steps: list[str]) -> None:
    with stages:
        steps.append(f"{name} parsed")
        await stages.next_stage("m")
        steps.append(f"{name} tokenised")
        await stages.next_stage("m")
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


def test_of_a_crowd_only_so_many_go_on_in_a_turn_and_another_model_is_among_the_first() -> None:
    async def main() -> None:
        stages, passed = PreparationStages(), list[str]()

        async def go_on(model: str) -> None:
            with stages:
                await stages.next_stage(model)
                passed.append(model)
                await everybody.wait()

        everybody, crowd = asyncio.Event(), 5 * MAX_A_TURN
        tasks = [asyncio.create_task(go_on("noisy")) for _ in range(crowd)]
        tasks.append(asyncio.create_task(go_on("quiet")))
        passed_by_turn = []
        while len(passed) <= crowd:
            before = len(passed)
            await asyncio.sleep(0)
            passed_by_turn.append(len(passed) - before)
        assert max(passed_by_turn) <= MAX_A_TURN
        assert passed.index("quiet") <= 2 * MAX_A_TURN
        everybody.set()
        await asyncio.gather(*tasks)

    asyncio.run(main())


def test_who_leaves_while_waiting_takes_no_turn() -> None:
    async def main() -> None:
        stages, passed = PreparationStages(), list[int]()

        async def go_on(number: int) -> None:
            with stages:
                await stages.next_stage("m")
                passed.append(number)

        with stages:  # another request is being served already
            tasks = [asyncio.create_task(go_on(number)) for number in range(3 * MAX_A_TURN)]
            await asyncio.sleep(0)
            for task in tasks[MAX_A_TURN:-1]:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        assert sorted(passed) == [*range(MAX_A_TURN), 3 * MAX_A_TURN - 1]

    asyncio.run(main())
