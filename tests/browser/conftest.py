"""The site in a real browser: `nox -s browser` builds it and says where it is.

What a page asks of another host, and what it writes to the console as an error, fails
the test in which it happens.
"""

from __future__ import annotations

import os
import shutil
import sys
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlparse

import pytest
from screens import WIDE

sys.path.insert(0, str(Path(__file__).parents[2] / "ci"))
from publish_site import publish

SITE = "BUILT_SITE"
"""The variable that names the folder of the built site."""


class QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, *args):
        """Say nothing of each request."""


def chromium() -> str:
    """Return the path of the browser that is installed."""
    names = ("chromium", "chromium-browser", "google-chrome")
    found = [path for path in map(shutil.which, names) if path]
    assert found, "there is no chromium: apt-get install chromium"
    return found[0]


def pytest_collection_modifyitems(items):
    """Skip the tests of this folder where what they need is missing."""
    if os.environ.get(SITE):
        return  # they were asked for: what is missing is then an error
    needed = "the built site, chromium and playwright: nox -s browser"
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.skip(reason=f"it needs {needed}"))


@pytest.fixture(scope="session")
def folder():
    """The folder of the built site."""
    found = Path(os.environ[SITE]).resolve()
    assert (found / "index.html").is_file(), f"there is no built site in {found}"
    return found


VERSIONS = ("0.1.0", "0.2.0", "dev")
"""The versions that are published; the tests look at the last one."""


@pytest.fixture(scope="session")
def published(folder, tmp_path_factory):
    """The folder in which the built site is published as each of `VERSIONS`."""
    place = tmp_path_factory.mktemp("published")
    for version in VERSIONS:
        publish(folder, place, version)
    return place


@pytest.fixture(scope="session")
def address(published):
    """The address of the last version of the site, served by this process."""
    handler = partial(QuietHandler, directory=str(published))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/{VERSIONS[-1]}"
        server.shutdown()
        thread.join()


@pytest.fixture(scope="session")
def browser():
    """One browser for all tests."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        # It runs as the user who runs the tests, who may be root in a container.
        options = {"executable_path": chromium(), "args": ["--no-sandbox"]}
        started = driver.chromium.launch(**options)
        yield started
        started.close()


@pytest.fixture
def opened(browser, address):
    """Open pages, each with options of its own; what they did wrong fails the test."""
    contexts, wrong = [], []
    here = urlparse(address).netloc

    def watched(request):
        url = urlparse(request.url)
        if url.scheme in ("http", "https") and url.netloc != here:
            wrong.append(f"a request to {request.url}")

    def answered(response):
        if response.status >= 400:
            wrong.append(f"{response.status} for {response.url}")

    def heard(message):
        if message.type == "error":
            wrong.append(f"an error: {message.text}")

    def open_page(path, **options):
        context = browser.new_context(**{"viewport": WIDE} | options)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(30_000)
        page.on("request", watched)
        page.on("response", answered)
        page.on("pageerror", lambda error: wrong.append(f"an exception: {error}"))
        page.on("console", heard)
        local = path.startswith("file:")
        page.goto(path if local else f"{address}/{path}", wait_until="load")
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert wrong == []
