"""A real browser for the tests of the page: Chromium of the system, without a window."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest

from tests.support.browser.built_page import require_page

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

SavePicture = Callable[["Page", str], None]
NAMES = ("chromium", "chromium-browser", "google-chrome")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--pictures", action="store_true", help="Write the pictures of the page into docs/pictures.")


@pytest.fixture(scope="session")
def chromium_path() -> str:
    """Skips where there is none."""
    pytest.importorskip("playwright", reason="playwright is not installed")
    path = next(filter(None, map(shutil.which, NAMES)), None)
    if path is None:
        pytest.skip("chromium is not on PATH")
    return path


@pytest.fixture(scope="module")
def browser(chromium_path: str) -> Iterator[Browser]:
    """For a module: while it is there, this thread has a running event loop."""
    from playwright.sync_api import sync_playwright

    require_page()
    options = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium_path, args=options)
        yield browser
        browser.close()


@pytest.fixture
def picture(request: pytest.FixtureRequest) -> SavePicture:
    """Saves a picture of a page for the docs, if that is asked for."""
    if not request.config.getoption("--pictures"):
        return lambda page, name: None
    from tests.support.browser.pictures import save_picture

    return save_picture
