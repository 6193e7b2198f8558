"""Faults of a page that keep people from using it, as axe-core finds them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from playwright.sync_api import Page

GRAVE = frozenset({"serious", "critical"})
RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "best-practice"]
OF_COLOURS = ["color-contrast"]  # the only rule whose outcome differs between the themes
FIND = "runOnly => axe.run(document, {runOnly, resultTypes: ['violations']})"


def grave_faults(page: Page, axe: Path) -> list[str]:
    """Each with the rule and the elements that break it, in the light theme and in the dark one."""
    page.evaluate(axe.read_text())
    page.emulate_media(color_scheme="light")
    found: dict[str, Any] = page.evaluate(FIND, RULES)
    page.emulate_media(color_scheme="dark")
    in_dark: dict[str, Any] = page.evaluate(FIND, {"type": "rule", "values": OF_COLOURS})
    faults = [fault for one in (found, in_dark) for fault in one["violations"]]
    return [described(fault) for fault in faults if fault["impact"] in GRAVE]


def described(fault: dict[str, Any]) -> str:
    nodes = "; ".join(f"{node['html'][:120]} ({node['failureSummary'][:160]})" for node in fault["nodes"][:3])
    return f"{fault['id']}: {fault['help']}: {nodes}"
