"""A dispatcher, alone and with workers."""

import pytest

from tests.support.router.dispatcher_lab import D, Lab, P


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
