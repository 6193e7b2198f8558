"""Writes docs/reference/metrics.md from the code that makes the metrics."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from scripts.monitoring.families import MetricDescription, all_metrics  # noqa: E402

PAGE = ROOT / "docs" / "reference" / "metrics.md"
SOURCES = {
    "router": ("The router", "`GET /metrics` of the router (of `router.admin.port`, if it is set)."),
    "tensor": ("Tensor models", "The port `repository.metrics` (8002), and behind the router's own metrics."),
    "driver": ("The driver", "`GET /metrics` of the admin API, with the administrator's token as bearer token."),
}
HEAD = """# Metrics

All metric families, by the page that shows them. A histogram `NAME` has samples `NAME_bucket` (with the label `le`),
`NAME_sum` and `NAME_count`; a summary has the last two. How to use them: [monitoring](../how-to/monitoring.md). This
page is written by `scripts/monitoring/metrics_reference.py`.
"""


def page() -> str:
    metrics, parts = all_metrics(), [HEAD]
    for source, (title, where) in SOURCES.items():
        rows = [row(one) for one in metrics if one.source == source]
        parts.append(f"## {title}\n\n{where}\n\n| metric | type | labels | unit | meaning |\n|---|---|---|---|---|")
        parts.append("\n".join(rows) + "\n")
    return "\n".join(parts)


def row(one: MetricDescription) -> str:
    labels = ", ".join(f"`{label}`" for label in one.labels)
    return f"| `{one.name}` | {one.kind} | {labels} | {one.unit} | {one.help.replace('|', '/')} |"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
