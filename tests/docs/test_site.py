"""The site is built without a warning, loads nothing from elsewhere, and works in a browser, also from the disk."""

import functools
import json
import os
import queue
import re
import shutil
import signal
import subprocess
import sys
import threading
from contextlib import contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from benchmarks.tables import differing_pages

ROOT = Path(__file__).parents[2]
WIDTHS = (380, 1280)
MEASURE = """<!DOCTYPE html><title>measure</title><body><script>
const results = {};
async function load(page, width) {
  const frame = document.createElement("iframe");
  frame.style = `width: ${width}px; height: 800px; border: 0`;
  frame.src = page;
  document.body.append(frame);
  await new Promise(resolve => frame.onload = resolve);
  const root = frame.contentDocument.documentElement;
  results[`${page} ${width}`] = [root.scrollWidth, root.clientWidth, frame.contentDocument.title];
  frame.remove();
}
(async () => {
  const loads = WIDTHS.flatMap(width => PAGES.map(page => [page, width]));
  while (loads.length) await Promise.all(loads.splice(0, 12).map(([page, width]) => load(page, width)));
  await fetch("/results", {method: "POST", body: JSON.stringify(results)});
})();
</script>"""

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
needs_browser = pytest.mark.skipif(BROWSER is None, reason="Chromium or Chrome is not installed")


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
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
    found = {page: loading.findall((site / page).read_text()) for page in pages(site)}
    assert not {page: urls for page, urls in found.items() if urls}
    styles = [path for path in site.rglob("*.css") if re.search(r"url\(\s*['\"]?(?:https?:)?//", path.read_text())]
    assert not styles


@needs_browser
def test_no_page_is_wider_than_a_phone_or_a_desktop(site, server, tmp_path):
    text = MEASURE.replace("WIDTHS", json.dumps(WIDTHS)).replace("PAGES", json.dumps(pages(site)))
    (site / "measure.html").write_text(text)
    try:
        with started_browser(f"http://127.0.0.1:{server.server_port}/measure.html", tmp_path):
            results = json.loads(server.results.get(timeout=60))
    finally:
        (site / "measure.html").unlink()
    assert len(results) == len(WIDTHS) * len(pages(site)) and all(title for *_, title in results.values())
    assert not {name: sizes for name, sizes in results.items() if sizes[0] > sizes[1]}


@needs_browser
def test_the_search_works_from_the_disk(site, tmp_path):
    address = f"{(site / 'index.html').as_uri()}?q=checkpoint"
    dom = subprocess.run(
        command(address, tmp_path, "--dump-dom", "--virtual-time-budget=20000"),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    ).stdout
    assert "md-search-result__item" in dom


def test_tables_are_those_of_the_committed_results():
    assert not differing_pages(), "python -m benchmarks tables"
