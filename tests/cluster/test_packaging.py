"""From where this environment has Slipstream. (`tests/e2e/test_wheel.py` has what others install.)"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_this_environment_imports_slipstream_from_the_checkout_wherever_it_is(tmp_path: Path) -> None:
    code = "import slipstream.kv_transfer.api.ticket as ticket; print(ticket.__file__)"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(ROOT / "slipstream" / "kv_transfer" / "api" / "ticket.py")
