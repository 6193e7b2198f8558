"""Runs an instance: `python .../instance/main.py`, with the interpreter that the model asks for.

That interpreter may have no `slipstream` installed, so this file makes the package known from where it lies. It does so
in processes that the model starts, too: `multiprocessing` imports the main file there.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path

HERE = Path(__file__).absolute().parent
PACKAGE = HERE.parents[3]
IMPORT_PATH = HERE.parent / "import_path"


def make_package_known() -> None:
    spec = importlib.util.spec_from_file_location(
        "slipstream", PACKAGE / "__init__.py", submodule_search_locations=[str(PACKAGE)]
    )
    assert spec is not None
    assert spec.loader is not None
    package = importlib.util.module_from_spec(spec)
    sys.modules["slipstream"] = package
    spec.loader.exec_module(package)


def main() -> int:
    program = importlib.import_module("slipstream.workers.backends.python.instance.program")
    return int(program.run_python_model(str(IMPORT_PATH)))


if str(HERE) in sys.path:
    sys.path.remove(str(HERE))  # modules of this folder must not hide a model's
make_package_known()

if __name__ == "__main__":
    sys.exit(main())
