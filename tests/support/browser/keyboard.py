"""Using a page as people do who have no mouse."""

from __future__ import annotations

from playwright.sync_api import Page

FOCUSED_NAME = """
(() => {
  const one = document.activeElement;
  if (one === document.body) return "";
  const name = one.getAttribute("aria-label") || one.labels?.[0]?.innerText || one.innerText || "";
  return name.trim().replace(/\\s+/g, " ");
})()
"""
MOST_TABS = 80


def focused(page: Page) -> str:
    """The name of the element that has the focus; empty if none has."""
    name: str = page.evaluate(FOCUSED_NAME)
    return name


def tab_to(page: Page, name: str) -> None:
    """Presses Tab until the element of that name has the focus."""
    names: list[str] = []
    while len(names) < MOST_TABS:
        page.keyboard.press("Tab")
        names.append(focused(page))
        if names[-1] == name:
            return
    raise AssertionError(f"{name!r} is not reached by Tab, but {names}")
