"""Answers show themselves, whatever was imported to make them."""

import subprocess
import sys

import pytest

from shoestring import display


def test_what_nothing_draws_is_said():
    with pytest.raises(NotImplementedError, match="draws a list as HTML"):
        display.html([])


@pytest.mark.parametrize(
    ("module", "name"), [("plan.plan", "Plan"), ("plan.estimate", "Estimate"), ("plan.comparison", "Comparison")]
)
def test_every_answer_with_html_of_its_own_can_be_drawn_without_another_import(module, name):
    script = (
        f"from shoestring.{module} import {name} as answer\nfrom shoestring.display import html\n"
        "assert html.dispatch(answer) is not html.dispatch(object)\n"
        "assert hasattr(answer, '_repr_html_')\n"
    )
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
