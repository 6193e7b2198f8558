"""Is the head ready? As long as no driver runs there is no router to ask, and KubeRay waits for this to submit one."""

import os
import sys
import urllib.error
import urllib.request
from pathlib import Path

if any((Path(os.environ["XDG_RUNTIME_DIR"]) / "slipstream").glob("*.json")):
    try:
        with urllib.request.urlopen("http://127.0.0.1:8000/health/ready", timeout=5):
            pass
    except (OSError, urllib.error.HTTPError) as error:
        sys.exit(f"not ready: {error}")
