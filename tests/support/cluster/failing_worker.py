"""A worker program that ends at once."""

from __future__ import annotations

import json
import sys
from pathlib import Path

if __name__ == "__main__":
    config = json.loads(Path(sys.argv[sys.argv.index("--config") + 1]).read_text())
    print(f"no room for {config['name']}", file=sys.stderr)
    sys.exit(1)
