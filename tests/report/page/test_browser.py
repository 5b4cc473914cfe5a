"""The page in a real browser: nothing is fetched, nothing complains, every figure is really there."""

import json
import re
import shutil
import subprocess

import numpy as np
import pytest
from matplotlib.image import imread

from shoestring.report.page.document import write
from tests.report import runs

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
SIZE = (1200, 4600)
MEASURE = """<script>
document.body.dataset.figures = JSON.stringify([...document.querySelectorAll("svg")].map(svg => {
  const box = svg.getBoundingClientRect();
  return [svg.getAttribute("aria-label"), box.left, box.top, box.width, box.height];
}));
document.body.dataset.overflow = document.documentElement.scrollWidth > innerWidth;
</script>"""

pytestmark = pytest.mark.skipif(BROWSER is None, reason="there is no chromium or chrome on this machine")


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    return write(runs.finished(tmp_path_factory.mktemp("run")))


def browse(page, tmp_path, *arguments, size=SIZE):
    """What the browser writes to stdout and stderr about `page`."""
    quiet = (
        "no-first-run",
        "disable-background-networking",
        "disable-component-update",
        "disable-sync",
        "disable-quic",
    )
    done = subprocess.run(
        [
            BROWSER,
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            *(f"--{name}" for name in quiet),
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
    assert done.returncode == 0, done.stderr
    return done


def measured(page, tmp_path, size=SIZE):
    """Boxes of the figures by label, and whether the page is wider than the window.

    The page itself runs no script: this measures a copy that may.
    """
    text = page.read_text()
    copy = tmp_path / "measured.html"
    copy.write_text(re.sub(r"<meta http-equiv[^>]*>", "", text).replace("</body>", MEASURE + "</body>"))
    dom = browse(copy, tmp_path, "--dump-dom", size=size).stdout
    figures = json.loads(re.search(r'data-figures="([^"]*)"', dom)[1].replace("&quot;", '"'))
    return {label: box for label, *box in figures}, 'data-overflow="true"' in dom


def console(page, tmp_path):
    """What the page made the browser complain about."""
    seen = browse(page, tmp_path, "--dump-dom", "--enable-logging=stderr")
    assert "<h1>temporal</h1>" in seen.stdout
    return [line for line in seen.stderr.splitlines() if "CONSOLE" in line]


def test_nothing_is_fetched_and_nothing_complains(page, tmp_path):
    assert console(page, tmp_path) == []


def test_whatever_would_be_fetched_or_run_is_refused_aloud(page, tmp_path):
    """The browser's own proof of the test above: one attempt each, and it complains."""
    attempts = ('<img src="http://localhost:9/">', "<script>1</script>")
    for index, attempt in enumerate(attempts):
        copy = tmp_path / f"{index}.html"
        copy.write_text(page.read_text().replace("</body>", f"{attempt}</body>"))
        assert any("Content Security Policy" in line for line in console(copy, tmp_path)), attempt


def test_every_figure_is_drawn(page, tmp_path):
    boxes, overflows = measured(page, tmp_path)
    assert list(boxes) == [
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
        drawn = pixels[round(top) : round(top + height), round(left) : round(left + width)]
        colourful = np.ptp(drawn, axis=-1) > 0.3
        assert colourful.sum() > 100, label


def test_a_phone_scrolls_figures_and_not_the_page(page, tmp_path):
    boxes, overflows = measured(page, tmp_path, size=(500, 900))
    assert not overflows
    assert boxes["Loss of temporal over its updates"][2] > 500
    assert boxes["accuracy on validation data"][2] < 500


@pytest.mark.parametrize(("scheme", "dark"), [(0, True), (1, False)])
def test_the_page_follows_the_readers_colour_scheme(page, tmp_path, scheme, dark):
    picture = tmp_path / "page.png"
    setting = f"--blink-settings=preferredColorScheme={scheme}"
    browse(page, tmp_path, f"--screenshot={picture}", setting, size=(1200, 1200))
    pixels = imread(picture)[..., :3]
    assert (pixels.mean() < 0.5) == dark
    assert len(np.unique(pixels.reshape(-1, 3), axis=0)) > 50
