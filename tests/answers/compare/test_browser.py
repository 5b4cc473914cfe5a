"""The comparison in a real browser: wide and narrow."""

import pytest

from shoestring.answers.compare.document import write
from tests.answers import runs
from tests.answers.report.test_browser import BROWSER, measure_figures

pytestmark = pytest.mark.skipif(BROWSER is None, reason="Chromium or Chrome is not installed")


@pytest.mark.parametrize("width", [1200, 500])
def test_comparison_fits_the_window(tmp_path, width):
    names = ["first", "a_second_run_with_a_long_name_that_does_not_break", "third"]
    page = write([runs.finished(tmp_path / name) for name in names], tmp_path / "page.html")
    boxes, overflows = measure_figures(page, tmp_path, size=(width, 900))
    assert len(boxes) == 5 and not overflows
