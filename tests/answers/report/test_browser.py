"""The page in a real browser: no requests, no console messages, and every figure is visible."""

import json
import re
import shutil
import subprocess

import numpy as np
import pytest
from matplotlib.image import imread

from shoestring.answers.report.document import write
from tests.answers import runs

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
SIZE = (1200, 6400)
MEASURE = """<script>
document.body.dataset.figures = JSON.stringify([...document.querySelectorAll("svg")].map(svg => {
  const box = svg.getBoundingClientRect();
  return [svg.getAttribute("aria-label"), box.left, box.top, box.width, box.height];
}));
document.body.dataset.overflow = document.documentElement.scrollWidth > innerWidth;
</script>"""

pytestmark = pytest.mark.skipif(BROWSER is None, reason="Chromium or Chrome is not installed")


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    return write(runs.finished(tmp_path_factory.mktemp("run")))


def browse(page, tmp_path, *arguments, size=SIZE):
    """Load `page` in a headless browser and return the completed process."""
    flags = (
        "no-first-run",
        "disable-background-networking",
        "disable-component-update",
        "disable-sync",
        "disable-quic",
    )
    process = subprocess.run(
        [
            BROWSER,
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            *(f"--{name}" for name in flags),
            f"--user-data-dir={tmp_path / 'profile'}",
            f"--window-size={size[0]},{size[1]}",
            "--timeout=20000",
            *arguments,
            page.as_uri(),
        ],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert process.returncode == 0, process.stderr
    return process


def measure_figures(page, tmp_path, size=SIZE):
    """Return the boxes of the figures by label, and whether the page is wider than the window.

    The page forbids scripts, so this measures a copy without its Content-Security-Policy.
    """
    text = page.read_text()
    copy = tmp_path / "measured.html"
    copy.write_text(re.sub(r"<meta http-equiv[^>]*>", "", text).replace("</body>", MEASURE + "</body>"))
    dom = browse(copy, tmp_path, "--dump-dom", size=size).stdout
    figures = json.loads(re.search(r'data-figures="([^"]*)"', dom)[1].replace("&quot;", '"'))
    return {label: box for label, *box in figures}, 'data-overflow="true"' in dom


def console_messages(page, tmp_path):
    """Return the messages that the browser logs while loading the page."""
    process = browse(page, tmp_path, "--dump-dom", "--enable-logging=stderr")
    assert "<h1>temporal</h1>" in process.stdout
    return [line for line in process.stderr.splitlines() if "CONSOLE" in line]


def test_page_causes_no_console_messages(page, tmp_path):
    assert console_messages(page, tmp_path) == []


def test_fetching_and_scripts_are_refused_with_messages(page, tmp_path):
    """Show that the previous test would detect a violation: each attempt logs a message."""
    attempts = ('<img src="http://localhost:9/">', "<script>1</script>")
    for index, attempt in enumerate(attempts):
        copy = tmp_path / f"{index}.html"
        copy.write_text(page.read_text().replace("</body>", f"{attempt}</body>"))
        assert any("Content Security Policy" in line for line in console_messages(copy, tmp_path)), attempt


def test_every_figure_is_drawn(page, tmp_path):
    boxes, overflows = measure_figures(page, tmp_path)
    assert list(boxes) == [
        "Confusion matrix",
        "Precision, recall and F1 of each class",
        "Histogram of psnr",
        "Loss of temporal over its updates",
        "accuracy on validation data",
        "macro f1 on validation data",
        "Training samples per second over the updates",
        "Memory in use over the updates",
        "Learning rate over the updates",
        "Norm of the gradient over the updates",
        "Sessions on the wall clock",
        "Parts of the planned memory",
    ]
    assert not overflows
    browse(page, tmp_path, f"--screenshot={tmp_path / 'page.png'}", "--hide-scrollbars")
    pixels = imread(tmp_path / "page.png")[..., :3]
    for label, (left, top, width, height) in boxes.items():
        assert width > 300 and height > 80, label
        region = pixels[round(top) : round(top + height), round(left) : round(left + width)]
        colored = np.ptp(region, axis=-1) > 0.3
        assert colored.sum() > 100, label


def test_narrow_screen_scrolls_figures_not_the_page(page, tmp_path):
    boxes, overflows = measure_figures(page, tmp_path, size=(500, 900))
    assert not overflows
    assert boxes["Loss of temporal over its updates"][2] > 500
    assert boxes["accuracy on validation data"][2] < 500


@pytest.mark.parametrize(("scheme", "dark"), [(0, True), pytest.param(1, False, marks=pytest.mark.slow)])
def test_page_follows_the_preferred_color_scheme(page, tmp_path, scheme, dark):
    screenshot = tmp_path / "page.png"
    setting = f"--blink-settings=preferredColorScheme={scheme}"
    browse(page, tmp_path, f"--screenshot={screenshot}", setting, size=(1200, 1200))
    pixels = imread(screenshot)[..., :3]
    assert (pixels.mean() < 0.5) == dark
    assert len(np.unique(pixels.reshape(-1, 3), axis=0)) > 50
