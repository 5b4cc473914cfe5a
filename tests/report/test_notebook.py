"""The notebook display of estimates and comparisons; that of plans is tested in tests/plan/test_plan.py."""

import re
from html.parser import HTMLParser

import pytest

import shoestring
from shoestring.units import bytes_text
from tests.mine import Mine


class OddlyNamedRecipe(Mine):
    pass


OddlyNamedRecipe.__name__ = "<odd> & 'co'"


class Reader(HTMLParser):
    """Checks that every tag is closed, and collects the text."""

    def __init__(self):
        super().__init__()
        self.open, self.texts = [], []

    def handle_starttag(self, tag, attrs):
        if tag != "br":
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)


def read(html):
    reader = Reader()
    reader.feed(html)
    reader.close()
    assert not reader.open
    return reader.texts


@pytest.fixture(scope="module")
def comparison():
    return shoestring.compare(OddlyNamedRecipe(), ["kaggle-t4", "t4"])


def test_estimate_shows_verdict_and_memory_parts():
    estimate = shoestring.estimate(OddlyNamedRecipe(), on="t4")
    html = estimate._repr_html_()
    texts = read(html)
    assert texts[0] == "<odd> & 'co' on t4"
    assert "fits" in texts
    assert [text for text in texts if text in {part.name for part in estimate.memory.parts}] == [
        part.name for part in sorted(estimate.memory.parts, key=lambda part: -part.bytes)
    ]
    assert max(float(width) for width in re.findall(r";width:([\d.]+)em", html)) == 20
    assert any(text.startswith(f"{bytes_text(estimate.peak_bytes)} at the peak") for text in texts)


def test_comparison_shows_each_target_and_every_plan(comparison):
    html = comparison._repr_html_()
    texts = read(html)
    assert texts.index("target") < texts.index("kaggle-t4") < texts.index("t4") < texts.index("<odd> & 'co' on t4")
    assert html.endswith("".join(plan._repr_html_() for plan in comparison.plans))


def test_plan_shows_each_reason_on_its_own_line(comparison):
    plan = comparison.plans[0]
    html = plan._repr_html_()
    assert set(plan.reasons) <= set(read(html))
    assert html.count("<br>") == sum(
        len(lines) - 1
        for lines in (plan.limits, plan.reasons, plan.facts.notes, plan.advice, plan.proposals, plan.phases)
        if lines
    )
