"""The site is built without a warning, loads nothing from elsewhere, and works in a browser, also from the disk."""

import functools
import json
import os
import posixpath
import queue
import re
import shutil
import signal
import subprocess
import sys
import threading
from contextlib import contextmanager
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from benchmarks.tables import differing_pages

ROOT = Path(__file__).parents[2]
WIDTHS = (380, 1280)
LEAST_CONTRAST = 4.5
"""Of text with its background: level AA of the Web Content Accessibility Guidelines 2."""
MEASURE = (Path(__file__).parent / "measure.html").read_text()

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
needs_browser = pytest.mark.skipif(BROWSER is None, reason="Chromium or Chrome is not installed")


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # mkdocstrings calls ruff
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1", "PATH": path}
    process = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert process.returncode == 0 and not process.stdout + process.stderr, process.stdout + process.stderr
    return folder


class Handler(SimpleHTTPRequestHandler):
    """Serves the site, and receives what a page posts."""

    def log_message(self, *arguments):
        pass

    def do_POST(self):
        self.server.results.put(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(204)
        self.end_headers()


@pytest.fixture
def server(site):
    with ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Handler, directory=str(site))) as server:
        server.results = queue.Queue()
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        yield server
        server.shutdown()


def command(address, folder, *arguments):
    flags = ("headless", "no-sandbox", "disable-gpu", "disable-dev-shm-usage", "no-first-run", "disable-sync")
    return [BROWSER, *(f"--{flag}" for flag in flags), f"--user-data-dir={folder / 'profile'}", *arguments, address]


@contextmanager
def started_browser(address, folder):
    process = subprocess.Popen(
        command(address, folder, "--remote-debugging-port=0"),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        yield
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def pages(site):
    return sorted(path.relative_to(site).as_posix() for path in site.rglob("*.html"))


def test_nothing_is_loaded_from_elsewhere(site):
    loading = re.compile(r"""<(?:script|img|iframe|link|source)[^>]*?(?:src|href)=["']?((?:https?:)?//[^"'\s>]+)""")
    urls_by_page = {page: loading.findall((site / page).read_text()) for page in pages(site)}
    assert not {page: urls for page, urls in urls_by_page.items() if urls}
    styles = [path for path in site.rglob("*.css") if re.search(r"url\(\s*['\"]?(?:https?:)?//", path.read_text())]
    assert not styles


class Links(HTMLParser):
    """The links of a page, and the anchors that links can name."""

    def __init__(self, text):
        super().__init__()
        self.links, self.anchors = set(), {""}
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        values = dict(attributes)
        self.links.update(filter(None, (values.get("href"), values.get("src"))))
        self.anchors.update(filter(None, (values.get("id"), values.get("name"))))


def test_every_link_leads_to_a_file_and_an_anchor(site):
    parsed = {page: Links((site / page).read_text()) for page in pages(site)}
    dead = []
    for page, links in parsed.items():
        for link in links.links:
            url = urlsplit(link)
            if url.scheme or link == "/" or page == "404.html":
                continue
            path = posixpath.normpath(posixpath.join(posixpath.dirname(page), unquote(url.path))) if url.path else page
            if path.endswith(".html") and path in parsed:
                exists = unquote(url.fragment) in parsed[path].anchors
            else:
                exists = (site / path).is_file()
            if not exists:
                dead.append(f"{page}: {link}")
    assert sum(len(links.links) for links in parsed.values()) > 1000
    assert not dead


@pytest.mark.slow
@needs_browser
def test_pages_fit_phones_and_desktops_and_are_readable_in_both_color_schemes(site, server, tmp_path):
    text = MEASURE.replace("WIDTHS", json.dumps(WIDTHS)).replace("PAGES", json.dumps(pages(site)))
    (site / "measure.html").write_text(text)
    try:
        with started_browser(f"http://127.0.0.1:{server.server_port}/measure.html", tmp_path):
            results = json.loads(server.results.get(timeout=100))
    finally:
        (site / "measure.html").unlink()
    assert len(results) == len(WIDTHS) * len(pages(site)) and all(result["title"] for result in results)
    assert not [result for result in results if result["content_width"] > result["frame_width"]]
    contrasts = [(*contrast, result["page"]) for result in results for contrast in result["contrast"]]
    assert len(contrasts) == 2 * len(pages(site))
    assert not [contrast for contrast in contrasts if contrast[0] < LEAST_CONTRAST]


@needs_browser
def test_the_search_works_from_the_disk_and_explains_errors_first(site, tmp_path):
    address = f"{(site / 'index.html').as_uri()}?q=loss+is+not+finite"
    dom = subprocess.run(
        command(address, tmp_path, "--dump-dom", "--virtual-time-budget=20000"),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    ).stdout
    pages = re.findall(r'<a href="[^"]*?([^/"?]+)\.html[^"]*" class="md-search-result__link', dom)
    assert pages[0] == "troubleshooting" and len(set(pages)) > 1
    assert not {*pages} & {"claims", "design", "log"}


def test_tables_are_those_of_the_committed_results():
    assert not differing_pages(), "python -m benchmarks tables"
