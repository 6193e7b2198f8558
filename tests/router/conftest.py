"""A dispatcher, alone and with workers; and one process that tries grammars for all."""

from collections.abc import Iterator

import pytest

from tests.support.router.dispatcher_lab import D, Lab, P
from tests.support.router.shared_trials import shared_trials


@pytest.fixture(scope="session", autouse=True)
def _shared_trials() -> Iterator[None]:
    with shared_trials():
        yield


@pytest.fixture
def lab():
    return Lab()


@pytest.fixture
def pair():
    """A decode worker and a prefill group, both with credits."""
    lab = Lab()
    lab.join(D, "decode")
    lab.join(P, "prefill")
    lab.take()
    return lab
