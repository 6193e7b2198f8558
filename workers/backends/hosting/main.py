"""Runs an instance of a model that a backend computes: `python -P -m slipstream.workers.backends.hosting.main`."""

from __future__ import annotations

import sys

from slipstream.workers.backends.hosting.backend_model import BackendModel
from slipstream.workers.backends.hosting.kept_memory import keep_freed_memory
from slipstream.workers.backends.python.instance.program import run

if __name__ == "__main__":
    keep_freed_memory()
    sys.exit(run(lambda settings, _: BackendModel(settings)))
