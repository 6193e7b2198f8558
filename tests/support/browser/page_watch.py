"""What a page does beside what it shows: errors, requests to other hosts, and what its policy has stopped."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Dialog, Page, Request

NOTES_VIOLATIONS = """
window.violations = [];
document.addEventListener("securitypolicyviolation", (event) =>
  window.violations.push(`${event.violatedDirective} ${event.blockedURI} ${event.sourceFile}:${event.lineNumber}`));
"""
# Chromium writes an error for each answer with such a status, which pages may well expect.
EXPECTED = "Failed to load resource: the server responded with a status of"


@dataclass
class PageWatch:
    """Of all pages of a context; `host` is the one that they may ask."""

    host: str
    errors: list[str] = field(default_factory=list)
    foreign: list[str] = field(default_factory=list)
    dialogs: list[str] = field(default_factory=list)

    def attach(self, context: BrowserContext) -> None:
        context.add_init_script(NOTES_VIOLATIONS)
        context.on("request", self._requested)
        context.on("page", self._opened)

    def _opened(self, page: Page) -> None:
        page.on("console", self._said)
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("dialog", self._asked)

    def _requested(self, request: Request) -> None:
        url = urlsplit(request.url)
        if url.scheme not in ("data", "blob") and url.netloc != self.host:
            self.foreign.append(request.url)

    def _said(self, message: ConsoleMessage) -> None:
        if message.type == "error" and not message.text.startswith(EXPECTED):
            self.errors.append(message.text)

    def _asked(self, dialog: Dialog) -> None:
        self.dialogs.append(dialog.message)
        dialog.dismiss()

    def assert_harmless(self, page: Page) -> None:
        """Nothing was executed, and nothing left for other hosts."""
        assert self.foreign == []
        assert self.dialogs == []

    def assert_clean(self, page: Page) -> None:
        """Besides, nothing had to be stopped, and no error came."""
        self.assert_harmless(page)
        assert page.evaluate("window.violations") == []
        assert self.errors == []


@contextmanager
def watched_page(browser: Browser, url: str, *, scheme: str = "light") -> Iterator[tuple[Page, PageWatch]]:
    """A page of a context of its own, with nothing loaded; `url` is the site that it is for."""
    context = browser.new_context(
        viewport={"width": 1280, "height": 860}, color_scheme="dark" if scheme == "dark" else "light"
    )
    context.set_default_timeout(10_000)
    watch = PageWatch(urlsplit(url).netloc)
    watch.attach(context)
    try:
        yield context.new_page(), watch
    finally:
        context.close()
