"""Prints the compressed sizes of the built page, and fails if they exceed the bound: `sizes.py FOLDER`."""

from __future__ import annotations

import gzip
import sys
from pathlib import Path

MAX_BYTES = 400 << 10  # of all files together


def main(folder: Path) -> int:
    sizes = {path: len(gzip.compress(path.read_bytes(), 9)) for path in sorted(folder.rglob("*")) if path.is_file()}
    for path, size in sizes.items():
        print(f"{size:8} bytes  {path.relative_to(folder)}")
    total = sum(sizes.values())
    print(f"{total:8} bytes compressed, of at most {MAX_BYTES}")
    return int(not sizes or total > MAX_BYTES)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
