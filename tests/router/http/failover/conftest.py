"""A socket holder for each test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from slipstream.router.http.failover.holder.socket_holder import SocketHolder


@pytest.fixture
def holder() -> Iterator[SocketHolder]:
    holder = SocketHolder()
    yield holder
    holder.close()
