"""A process that is newer than the driver which starts it."""

from __future__ import annotations

import pickle
from dataclasses import dataclass, field, fields
from typing import Any

import pytest

from slipstream.cluster.older_driver import completed
from slipstream.router.config import RouterConfig
from slipstream.workers.config import EngineConfig, WorkerConfig


def as_older(settings: Any, num_fields: int) -> Any:
    """The settings as they arrive from a driver that knows only so many of the fields."""
    arrived = object.__new__(type(settings))
    arrived.__setstate__(settings.__getstate__()[:num_fields])
    return arrived


@dataclass(frozen=True, slots=True)
class Inner:
    old: int = 1
    new: int = 2


@dataclass(frozen=True, slots=True)
class Outer:
    name: str
    inner: Inner = Inner()
    several: tuple[Inner, ...] = ()
    new: dict[str, int] = field(default_factory=dict)


def test_fields_that_the_driver_does_not_know_get_their_defaults_at_every_depth() -> None:
    arrived = as_older(Outer("x", as_older(Inner(7, 9), 1), (as_older(Inner(8, 9), 1),)), 3)
    with pytest.raises(AttributeError):
        _ = arrived.new
    assert completed(arrived) is arrived
    assert arrived == Outer("x", Inner(7, 2), (Inner(8, 2),), {})


def test_a_field_without_a_default_is_named() -> None:
    with pytest.raises(TypeError, match=r"Outer\.name was sent by no driver"):
        completed(as_older(Outer("x"), 0))


def test_what_the_driver_sends_to_workers_and_router_arrives_whole_and_as_it_was() -> None:
    engine = EngineConfig(num_threads=3)
    worker = WorkerConfig("w", "decode", "m", "dir", "127.0.0.1", 1, engine=engine)
    for settings in (worker, RouterConfig()):
        assert completed(pickle.loads(pickle.dumps(settings))) == settings
    cut = as_older(worker, len(fields(worker)) - 1)
    assert completed(cut) == worker
