"""Describes a general model, in a process that is started for it (see `description.module_process`), or in a worker.

    python -m slipstream.workers.models.general.examination.examine describe DIRECTORY 0
    python -m slipstream.workers.models.general.examination.examine weights DIRECTORY 0

With 1 in the place of 0, code in the directory may be run.
"""

from __future__ import annotations

import contextlib
import os
import resource
import sys
from pathlib import Path

from slipstream.workers.models.description.model_description import DIRECTORY, CodeNeededError, Found
from slipstream.workers.models.description.no_collection import no_collection
from slipstream.workers.models.directory.json_keys import ModelError

# Of address space: torch's libraries take some 2 GiB; a model whose masks depend on numbers is built with zeros.
MEMORY_BYTES = 24 << 30


def found_in(model_dir: Path, runs_code: bool) -> Found:
    """The description of the model, in this process."""
    # Imported here, after `main` has set limits.
    with no_collection():
        from slipstream.workers.models.general.examination.examination import examined

    try:
        return Found(examined(model_dir, runs_code))
    except CodeNeededError as error:
        return Found(refusal=_anywhere(error, model_dir), needs_code=True)
    except ModelError as error:
        return Found(refusal=_anywhere(error, model_dir))


def describe(model_dir: Path, *, runs_code: bool) -> bytes:
    """A `Found` as JSON."""
    return found_in(model_dir, runs_code).to_json()


def weights(model_dir: Path, *, runs_code: bool) -> bytes:
    """What is wrong with the checkpoint, as a sentence with `DIRECTORY`; "" if nothing is."""
    from slipstream.workers.models.general.examination.weights_report import weights_problem

    try:
        problem = weights_problem(model_dir, runs_code) or ""
    except ModelError as error:
        problem = str(error)
    return problem.replace(str(model_dir), DIRECTORY).encode()


def _anywhere(error: ModelError, model_dir: Path) -> str:
    """The sentence, for a directory at any place with the same files."""
    return str(error).replace(str(model_dir), DIRECTORY)


def main() -> None:
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    bound = MEMORY_BYTES if hard == resource.RLIM_INFINITY else min(MEMORY_BYTES, hard)
    resource.setrlimit(resource.RLIMIT_AS, (bound, hard))
    what, directory, runs_code = sys.argv[1:]
    with contextlib.redirect_stdout(sys.stderr):  # libraries, and a model's own code, may print
        answer = {"describe": describe, "weights": weights}[what](Path(directory), runs_code=runs_code == "1")
    sys.stdout.buffer.write(answer)
    sys.stdout.flush()
    os._exit(0)  # the interpreter would take another second to free what the libraries hold


if __name__ == "__main__":
    main()
