"""How much the packages of an image take, as they are installed in this environment, and whether that is within bounds:
`python scripts/image/size.py [EXTRAS]`, by default with the large extras of the CPU image. Byte code, which `finish`
makes, and the base are not counted, nor what `finish` takes out.

`tests/deploy/test_containerfile.py` keeps the bound, as most hosts that run tests can build no image."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement

EXTRAS = "cpu,kserve,onnx"
MAX_BYTES = 1_350_000_000
TAKEN_OUT = re.compile(r"^(torch/(include|test|share/cmake|bin)/|ray/(jars|cpp)/|.*\.(a|pyc)$)")
TESTS_TAKEN_OUT = re.compile(r"^(networkx|numpy|pandas|scipy|sympy)/(.*/)?tests/")


def needed(name: str, extras: frozenset[str], found: dict[str, Distribution]) -> None:
    """Adds the distribution and all that it needs to those `found`. Raises PackageNotFoundError."""
    key = re.sub(r"[-_.]+", "-", name).lower()
    marked = f"{key}[{','.join(sorted(extras))}]"
    if marked in found:
        return
    found[marked] = here = distribution(name)
    for text in here.requires or ():
        requirement = Requirement(text)
        if any(
            requirement.marker is None or requirement.marker.evaluate({"extra": extra}) for extra in (extras or {""})
        ):
            needed(requirement.name, frozenset(requirement.extras), found)


def files_of(one: Distribution) -> Iterator[Path]:
    for file in one.files or ():
        name = file.as_posix()
        if not TAKEN_OUT.match(name) and not TESTS_TAKEN_OUT.match(name):
            yield Path(str(one.locate_file(file)))


def sizes(extras: str) -> dict[str, int]:
    """The bytes of each package. Raises PackageNotFoundError."""
    found: dict[str, Distribution] = {}
    needed("slipstream", frozenset(filter(None, extras.split(","))) | {""}, found)
    by_name = {key.partition("[")[0]: one for key, one in found.items()}
    return {name: sum(p.stat().st_size for p in files_of(one) if p.is_file()) for name, one in by_name.items()}


def main() -> int:
    try:
        by_package = sizes(sys.argv[1] if len(sys.argv) > 1 else EXTRAS)
    except PackageNotFoundError as error:
        print(f"size: {error} is not installed")
        return 2
    for name, size in sorted(by_package.items(), key=lambda one: -one[1])[:12]:
        print(f"{size / 1e6:8.1f} MB  {name}")
    total = sum(by_package.values())
    print(f"{total / 1e6:8.1f} MB  {len(by_package)} packages; at most {MAX_BYTES / 1e6:g}")
    return 0 if total <= MAX_BYTES else 1


if __name__ == "__main__":
    sys.exit(main())
