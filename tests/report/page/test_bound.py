import re

from shoestring.report.page import sections
from shoestring.report.page.run import read
from tests.report import runs


def said(run):
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", str(sections.bound(read(run)))))


def test_where_the_time_went_and_what_would_help(tmp_path):
    text = said(runs.finished(tmp_path))
    assert "Training was bound by arithmetic" in text and "A CPU does not tell launches" in text
    assert re.search(r"saving [\d.]+ s [\d.]+%", text)
    assert "arithmetic : half precision" in text or "arithmetic: half precision" in text


def test_nothing_before_the_first_update(tmp_path):
    assert said(runs.just_started(tmp_path)) == ""
