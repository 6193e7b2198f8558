"""A process that is newer or older than the driver which starts it."""

from __future__ import annotations

import pickle
from dataclasses import dataclass, field
from typing import Any

import pytest

from slipstream.cluster.config.settings_by_name import ByName, by_name, settings_of
from slipstream.router.config.router_config import RouterConfig
from slipstream.router.model_files.file_digest import FileDigest, FileStamp
from slipstream.router.model_files.manifest import Manifest, ManifestFile
from slipstream.router.registry.expected_workers import ExpectedWorkers
from slipstream.workers.config.worker_config import EngineConfig, RoleSettings, WorkerConfig


@dataclass(frozen=True, slots=True)
class Inner:
    new_first: int = 2
    old: int = 1


@dataclass(frozen=True, slots=True)
class Outer:
    name: str
    inner: Inner = Inner()
    several: tuple[Inner, ...] = ()
    new: dict[str, int] = field(default_factory=dict)


def as_sent(**fields: Any) -> ByName[Outer]:
    """As a driver sends it that knows only these fields."""
    return ByName(Outer, fields)


def test_fields_that_the_driver_does_not_know_get_their_defaults_at_every_depth() -> None:
    inner = ByName(Inner, {"old": 7})
    assert settings_of(as_sent(name="x", inner=inner, several=(inner,))) == Outer("x", Inner(2, 7), (Inner(2, 7),), {})


def test_fields_that_only_the_driver_knows_are_left_out() -> None:
    inner = ByName(Inner, {"old": 7, "newest": 1})
    assert settings_of(as_sent(name="x", inner=inner, newest="y")) == Outer("x", Inner(2, 7))


def test_a_field_without_a_default_is_missed_by_name() -> None:
    with pytest.raises(TypeError, match="name"):
        settings_of(as_sent())


def test_the_settings_of_workers_and_router_arrive_as_they_were() -> None:
    engine = EngineConfig(num_threads=3)
    other = RoleSettings(5, EngineConfig(niceness=3))
    manifest = Manifest((ManifestFile("a", FileDigest("d", FileStamp(1, 2, 3, 4, 5), True)),))
    worker = WorkerConfig("w", "decode", "m", "dir", "127.0.0.1", 1, engine=engine, other_role=other, manifest=manifest)
    for settings in (worker, RouterConfig(), ExpectedWorkers(2, 3, hindrance="x"), manifest):
        assert settings_of(pickle.loads(pickle.dumps(by_name(settings)))) == settings
