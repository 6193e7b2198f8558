"""Pages of one site that must do nothing but what they should."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from playwright.sync_api import Browser, Page

from tests.support.browser.page_watch import PageWatch, watched_page

OpenPage = Callable[..., Page]


@contextmanager
def page_opener(browser: Browser, site: str, *, prefix: str = "") -> Iterator[OpenPage]:
    """Gives `open_page("playground/rag", scheme="dark")`, which shows that view. In the end each is looked over."""
    with ExitStack() as stack:
        opened: list[tuple[Page, PageWatch]] = []

        def open_page(place: str, scheme: str = "light") -> Page:
            page, watch = stack.enter_context(watched_page(browser, site, scheme=scheme))
            opened.append((page, watch))
            page.goto(f"{site}{prefix}/ui/#/{place}")
            return page

        yield open_page
        for page, watch in opened:
            watch.assert_clean(page)
