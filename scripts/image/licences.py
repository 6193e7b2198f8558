"""Prints the licences that a CycloneDX file names, with their packages: `python3 scripts/image/licences.py FILE`.
Nothing but the standard library. The exit code is 1 if a package names none."""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

NONE = "no licence named"


def by_licence(components: list[dict[str, Any]]) -> dict[str, list[str]]:
    found: dict[str, set[str]] = defaultdict(set)
    for component in components:
        entries = component.get("licenses", [])
        names = [one.get("expression") or one["license"].get("id") or one["license"].get("name") for one in entries]
        for name in [str(name).splitlines()[0][:60] for name in names if name] or [NONE]:
            found[name].add(component["name"])
    return {name: sorted(packages) for name, packages in sorted(found.items(), key=lambda one: -len(one[1]))}


def main() -> int:
    found = by_licence(json.loads(Path(sys.argv[1]).read_text())["components"])
    for name, packages in found.items():
        shown = ", ".join(packages[:6]) + (", ..." if len(packages) > 6 else "")
        print(f"{len(packages):4}  {name}: {shown}")
    return 1 if NONE in found else 0


if __name__ == "__main__":
    sys.exit(main())
