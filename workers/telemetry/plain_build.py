"""The `Build` of a process without a model, for its greeting. Imports nothing heavy: a mock worker stays free of
torch."""

from __future__ import annotations

import platform

from slipstream import __version__
from slipstream.router.protocol.messages import Build


def plain_build() -> Build:
    return Build(slipstream=__version__, python=platform.python_version())
