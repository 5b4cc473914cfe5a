import re

from shoestring.answers.document import Document
from shoestring.answers.renderers.terminal.document import lines
from shoestring.answers.report import sections
from shoestring.answers.report.run import read
from tests.answers import runs


def section_text(run):
    return " ".join(lines(Document(title="", sentences=[], content=[*sections.time_breakdown(read(run))])))


def test_section_shows_bottleneck_shares_and_advice(tmp_path):
    text = section_text(runs.finished(tmp_path))
    assert "The bottleneck of training was arithmetic" in text and "Arithmetic includes launches" in text
    assert re.search(r"saving +[\d.]+ s +[\d.]+%", text)
    assert "arithmetic : half precision" in text or "arithmetic: half precision" in text


def test_section_is_empty_before_the_first_update(tmp_path):
    assert section_text(runs.just_started(tmp_path)) == ""
