"""Answers render themselves as text and HTML, whatever was imported to make them."""

import subprocess
import sys

import pytest

import shoestring
from shoestring.base import display
from tests.mine import Mine


@pytest.mark.parametrize("form", [display.html, display.text])
def test_unknown_answer_is_an_error(form):
    with pytest.raises(TypeError, match="list is not an answer"):
        form([])


@pytest.mark.parametrize(
    ("module", "name"),
    [("planning.plan", "Plan"), ("planning.estimation", "Estimate"), ("planning.comparison", "Comparison")],
)
def test_answers_render_without_another_import(module, name):
    script = (
        f"from shoestring.{module} import {name} as answer\nfrom shoestring.base.display import html, text\n"
        "empty = object.__new__(answer)\n"
        "for form in (html, text):\n"
        "    try: form(empty)\n"
        "    except AttributeError: pass  # the answer has no content, but its rendering is known\n"
        "assert hasattr(answer, '_repr_html_')\n"
    )
    process = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert process.returncode == 0, process.stderr


def test_plan_has_summary_and_short_repr():
    plan = shoestring.plan(Mine(), on="kaggle-t4")
    lines = str(plan).splitlines()
    assert lines[0].startswith("Mine fits on kaggle-t4") and 10 < len(lines) <= 25
    assert repr(plan) == f"<Plan of Mine on kaggle-t4: fits, micro_batch=4, {plan.settings.precision}>"


def test_estimate_and_comparison_have_short_repr():
    estimate = shoestring.estimate(Mine(), on="t4", micro_batch=2)
    assert "CUDA context" in str(estimate) and repr(estimate).startswith("<Estimate of Mine on t4: ")
    comparison = shoestring.compare(Mine(), on=["t4", "kaggle-t4"])
    assert "kaggle-t4" in str(comparison)
    assert repr(comparison) == "<Comparison of Mine: t4 fits, kaggle-t4 fits>"
