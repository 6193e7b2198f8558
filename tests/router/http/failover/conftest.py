"""A keeper for each test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from slipstream.router.http.failover.socket_holder import Keeper


@pytest.fixture
def keeper() -> Iterator[Keeper]:
    keeper = Keeper()
    yield keeper
    keeper.close()
