"""Mock decode workers of many models in one process.

    SLIPSTREAM_WORKER_TOKEN=... model_workers.py HOST:PORT '{"chat": {"max_slots": 8, "step_s": 0.01}, "draft": {}}' 1

The second argument gives each model the settings of its workers' profile, the third how many each has.
"""

from __future__ import annotations

import json
import os
import sys

import uvloop

from slipstream.workers.mock.mock_profile import MockProfile
from slipstream.workers.mock.mock_program import MockConfig, run_mock_workers


def main() -> None:
    host, _, port = sys.argv[1].rpartition(":")
    token = os.environ["SLIPSTREAM_WORKER_TOKEN"]
    configs = [
        MockConfig(f"{model}-decode-{number}", "decode", model, host, int(port), token, MockProfile(**settings))
        for model, settings in json.loads(sys.argv[2]).items()
        for number in range(int(sys.argv[3]))
    ]
    uvloop.run(run_mock_workers(configs))


if __name__ == "__main__":
    main()
