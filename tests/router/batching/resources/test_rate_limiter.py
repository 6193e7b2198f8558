"""The rate limiter: executions wait for resources, in the order of executions times priority."""

from __future__ import annotations

import random

import pytest

from slipstream.router.batching.resources.rate_limiter import RateLimiter
from slipstream.router.batching.resources.resource_pool import counts_by_device
from slipstream.router.tensors.infer_error import InferError
from slipstream.router.tensors.model_spec import InstanceGroup, RateResource


def group(*resources: RateResource, priority: int = 0) -> InstanceGroup:
    return InstanceGroup("g", 1, "KIND_CPU", rate_resources=resources, rate_priority=priority)


def limiter(*instances: str, need: int = 1, **settings: int) -> RateLimiter:
    """All instances need `need` of one resource, of which there is as much."""
    limits = RateLimiter(counts_by_device([("R", need, None)]))
    for instance in instances:
        limits.add(instance, group(RateResource("R", need), **settings))
    return limits


def test_an_instance_runs_only_when_its_resources_are_free() -> None:
    limits = limiter("a", "b")
    assert limits.acquire("a")
    assert not limits.acquire("b")
    assert limits.release("a") == ["b"]
    assert limits.acquire("b")
    assert limits.in_use == {("R", 0): 1}
    limits.release("b")
    assert not limits.in_use


def test_instances_without_resources_run_whenever_they_want() -> None:
    limits = limiter("a", "b")
    limits.add("free", group())
    for _ in range(3):
        assert limits.acquire("free")
        limits.release("free")
    assert limits.acquire("a")
    assert not limits.acquire("b")
    assert limits.acquire("free")


def test_who_waits_for_one_resource_holds_up_no_one_who_needs_another() -> None:
    limits = RateLimiter(counts_by_device([("R", 1, None), ("Q", 1, None)]))
    for name, resource in (("a", "R"), ("b", "R"), ("other", "Q")):
        limits.add(name, group(RateResource(resource, 1)))
    assert limits.acquire("a")
    assert not limits.acquire("b")
    assert limits.acquire("other")


def test_who_has_executed_least_is_next() -> None:
    limits = limiter("a", "b")
    for _ in range(3):
        assert limits.acquire("a")
        limits.release("a")
    assert limits.acquire("a")
    assert not limits.acquire("b")
    assert limits.release("a") == ["b"]
    assert not limits.acquire("a")
    assert limits.acquire("b")


def test_a_priority_of_two_means_half_as_many_executions() -> None:
    limits = RateLimiter()
    limits.add("a", group(RateResource("R", 1), priority=1))
    limits.add("b", group(RateResource("R", 1), priority=2))
    executions = {"a": 0, "b": 0}
    assert limits.acquire("a")
    running = "a"
    for _ in range(300):
        limits.acquire("b" if running == "a" else "a")  # stands in line
        limits.release(running)
        executions[running] += 1
        running = next(key for key in ("a", "b") if limits.acquire(key))
    assert executions["a"] == pytest.approx(2 * executions["b"], abs=3)


def test_a_newcomer_does_not_make_up_for_what_others_have_executed_before() -> None:
    limits = limiter("a", "b")
    for _ in range(10):
        for key in ("a", "b"):
            assert limits.acquire(key)
            limits.release(key)
    limits.add("new", group(RateResource("R", 1)))
    assert limits.acquire("a")
    limits.acquire("new")
    limits.acquire("b")
    assert limits.release("a") == ["new", "b"]
    assert limits.acquire("new")
    limits.acquire("a")
    assert limits.release("new") == ["b", "a"]


def test_nobody_overtakes_the_first_of_the_line() -> None:
    limits = RateLimiter(counts_by_device([("R", 2, None)]))
    for name, need in (("small", 1), ("other", 1), ("large", 2)):
        limits.add(name, group(RateResource("R", need)))
    assert limits.acquire("small")
    assert not limits.acquire("large")
    assert not limits.acquire("other")
    assert limits.withdraw("large") == ["other"]
    assert limits.acquire("other")


def test_a_release_without_execution_does_not_count() -> None:
    limits = limiter("a", "b")
    for _ in range(2):
        assert limits.acquire("a")
        limits.release("a", has_executed=False)
    assert limits.acquire("b")
    assert not limits.acquire("a")
    limits.release("b")
    assert limits.acquire("a")


def test_the_resources_of_a_lost_instance_are_free() -> None:
    limits = limiter("a", "b")
    assert limits.acquire("a")
    assert not limits.acquire("b")
    assert limits.remove("a") == ["b"]
    assert limits.acquire("b")


def test_a_device_has_resources_of_its_own_and_a_global_one_is_shared() -> None:
    limits = RateLimiter()
    for device in (0, 1):
        limits.add(f"own{device}", group(RateResource("R", 1)), device)
        limits.add(f"shared{device}", group(RateResource("G", 1, is_global=True)), device)
    assert limits.acquire("own0")
    assert limits.acquire("own1")
    assert limits.acquire("shared0")
    assert not limits.acquire("shared1")


def test_without_configured_counts_the_largest_need_is_the_limit() -> None:
    limits = RateLimiter()
    limits.add("large", group(RateResource("R", 3)))
    limits.add("small", group(RateResource("R", 1)))
    limits.add("other", group(RateResource("R", 1)))
    assert limits.acquire("small")
    assert limits.acquire("other")
    assert not limits.acquire("large")


def test_an_instance_that_could_never_run_is_refused() -> None:
    limits = RateLimiter(counts_by_device([("R", 2, "0")]))
    limits.add("a", group(RateResource("R", 2)))
    with pytest.raises(InferError) as refused:
        limits.add("b", group(RateResource("R", 3)))
    assert refused.value.message == (
        'Resource count for "R" is limited to 2 which will prevent scheduling of one or more model instances, the '
        "minimum required count is 3"
    )
    assert limits.acquire("a")


def test_a_resource_is_not_both_global_and_of_devices() -> None:
    limits = RateLimiter()
    limits.add("a", group(RateResource("R", 1)))
    with pytest.raises(InferError, match='Resource "R" is present as both global and device-specific resource'):
        limits.add("b", group(RateResource("R", 1, is_global=True)))


@pytest.mark.parametrize("seed", range(100))
def test_everyone_who_wants_to_run_gets_to_run_and_no_limit_is_passed(seed: int) -> None:
    draw = random.Random(seed)
    limits = RateLimiter(counts_by_device([("R", 4, None), ("G", 2, "global")]))
    names = [f"i{number}" for number in range(6)]
    for name in names:
        needs = (RateResource("R", draw.randint(0, 4)), RateResource("G", draw.randint(0, 2), is_global=True))
        limits.add(name, group(*needs, priority=draw.randint(0, 3)))
    wanted = dict.fromkeys(names, 20)
    running: list[str] = []
    for _ in range(2000):
        for name in draw.sample(names, len(names)):
            if wanted[name] and name not in running and limits.acquire(name):
                running.append(name)
                wanted[name] -= 1
        assert limits.in_use.get(("R", 0), 0) <= 4
        assert limits.in_use.get(("G", -1), 0) <= 2
        if not running:
            break
        limits.release(running.pop(draw.randrange(len(running))))
    assert not any(wanted.values())
    assert not limits.in_use
