"""Plans, estimates and comparisons in a notebook; more of plans is tested in tests/planning/test_plan.py."""

import dataclasses
import re

import pytest

import shoestring
from shoestring.answers.plan import accumulation
from shoestring.base.units import bytes_text
from shoestring.hardware.catalog import Platform
from shoestring.planning.sessions import PlannedSession, PlannedWeek
from tests.answers.markup_text import flat, read
from tests.mine import Mine


class OddlyNamedRecipe(Mine):
    pass


OddlyNamedRecipe.__name__ = "<odd> & 'co'"


@pytest.fixture(scope="module")
def comparison():
    return shoestring.compare(OddlyNamedRecipe(), ["kaggle-t4", "t4"])


@pytest.fixture(scope="module")
def plan(comparison):
    return comparison.plans[0]


def widths(html, height):
    """Return the widths in percent of the parts of each bar of a height in pixels."""
    bars = re.findall(rf'<div style="display:flex;gap:1px;height:{height}px[^>]*>((?:<div [^>]*></div>)*)</div>', html)
    return [[float(width) for width in re.findall(r"width:([\d.]+)%", bar)] for bar in bars]


def test_estimate_shows_verdict_and_all_parts_of_the_memory():
    estimate = shoestring.estimate(OddlyNamedRecipe(), on="t4")
    texts = read(estimate._repr_html_())
    assert texts[:2] == ["<odd> & 'co' on t4", "fits"]
    parts = sorted(estimate.memory.parts, key=lambda part: -part.bytes)
    assert [text for text in texts if text in {f"{part.name} {bytes_text(part.bytes)}" for part in parts}] == [
        f"{part.name} {bytes_text(part.bytes)}" for part in parts
    ]
    assert any(text.startswith(f"{bytes_text(estimate.peak_bytes)} at the peak") for text in texts)


def test_bar_of_a_small_peak_is_drawn_again_in_full_width(plan):
    memory = plan.memory
    (usage,), parts = widths(plan._repr_html_(), 22)
    assert usage == pytest.approx(100 * memory.peak_bytes / memory.capacity_bytes, abs=0.01)
    assert sum(parts) == pytest.approx(100, abs=0.1) and len(parts) == len(memory.parts)


def test_memory_beyond_the_capacity_is_marked(plan):
    capacity = round(plan.memory.peak_bytes * 0.8)
    memory = dataclasses.replace(plan.memory, capacity_bytes=capacity)
    html = dataclasses.replace(plan, memory=memory)._repr_html_()
    (parts,) = widths(html, 22)
    place = float(re.search(r"dashed;left:([\d.]+)%", html)[1])
    assert place == pytest.approx(sum(parts) * 0.8, rel=0.01)
    assert f"dashed: the capacity, {bytes_text(capacity)}" in flat(html)


def test_plan_shows_every_reason_and_note_folded(plan):
    plan = dataclasses.replace(plan, facts=dataclasses.replace(plan.facts, notes=("a <note>", "another")))
    texts = read(plan._repr_html_())
    for lines in (plan.reasons, plan.facts.notes, plan.advice, plan.unknown):
        assert set(lines) <= set(texts)
    assert "Reasons" in " ".join(texts) and f"Notes ({len(plan.facts.notes)})" in texts


def test_gpus_that_are_not_used_are_counted(plan):
    target = dataclasses.replace(plan.target, gpus=2)
    one, two = (plan.settings.replace(gpus=count, sharding="pipeline") for count in (1, 2))
    assert accumulation(dataclasses.replace(plan, target=target, settings=one)).endswith("1 of the 2 GPUs is not used")
    divided = accumulation(dataclasses.replace(plan, target=target, settings=two))
    assert "through both GPUs per update" in divided and "not used" not in divided


def test_sessions_are_drawn_within_their_weeks(plan):
    hours = [12.0, 12.0, 5.5, 9.0]
    platform = Platform(name="kaggle", title="Kaggle", session_hours=12.0, weekly_gpu_hours=30.0)
    long = dataclasses.replace(
        plan,
        target=dataclasses.replace(plan.target, platform=platform),
        sessions=tuple(PlannedSession(hours=each, updates=1, epochs=1.0) for each in hours),
        weeks=(PlannedWeek(week=1, sessions=3, hours=29.5), PlannedWeek(week=2, sessions=1, hours=9.0)),
    )
    html = long._repr_html_()
    assert widths(html, 12)[:2] == [pytest.approx([40, 40, 18.333], abs=0.01), [30]]
    assert "4 sessions of at most 12 h 00 min" in flat(html) and "29 h 30 min of 30 h" in flat(html)
    weeks = tuple(PlannedWeek(week=number, sessions=1, hours=12.0) for number in range(1, 41))
    endless = dataclasses.replace(long, sessions=long.sessions[:1] * 40, weeks=weeks)
    assert len(widths(endless._repr_html_(), 12)) == 6 + len(plan.limits) and "and 34 more weeks" in flat(
        endless._repr_html_()
    )


def test_plan_that_does_not_fit_shows_first_what_would_make_it_fit(plan):
    limit = dataclasses.replace(plan.limits[0], needs=2 * plan.limits[0].has)
    html = dataclasses.replace(
        plan, verdict="does not fit", changes=("a <larger> device",), limits=(limit,), next_command="shoestring plan X"
    )._repr_html_()
    texts = read(html)
    assert texts.index("does not fit") < texts.index("a <larger> device") < texts.index("Memory")
    assert "200%" in texts and "To plan it with changes that are predicted to fit" in texts


def test_comparison_shows_each_target_and_every_plan(comparison):
    html = comparison._repr_html_()
    texts = read(html)
    assert texts.index("target") < texts.index("kaggle-t4") < texts.index("t4") < texts.index("<odd> & 'co' on t4")
    assert all(plan._repr_html_() in html for plan in comparison.plans)


def test_notebook_has_the_text_of_the_terminal(plan, comparison):
    formatters = pytest.importorskip("IPython.core.formatters")
    text = formatters.PlainTextFormatter()(plan)
    assert text == str(plan) and "fits on kaggle-t4" in text
    assert formatters.PlainTextFormatter()(comparison) == str(comparison)
