"""Faults of a page that keep people from using it, as axe-core finds them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from playwright.sync_api import Page

GRAVE = frozenset({"serious", "critical"})
RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "best-practice"]


def grave_faults(page: Page, axe: Path) -> list[str]:
    """Each with the rule and the elements that break it."""
    page.evaluate(axe.read_text())
    found: dict[str, Any] = page.evaluate(
        "rules => axe.run(document, {runOnly: rules, resultTypes: ['violations']})", RULES
    )
    return [described(fault) for fault in found["violations"] if fault["impact"] in GRAVE]


def described(fault: dict[str, Any]) -> str:
    nodes = "; ".join(f"{node['html'][:120]} ({node['failureSummary'][:160]})" for node in fault["nodes"][:3])
    return f"{fault['id']}: {fault['help']}: {nodes}"
