"""Answers as plain text, which `print` shows: the same content as in a terminal."""

from io import StringIO

from rich.console import RenderableType

from shoestring import display
from shoestring.plan.comparison import Comparison
from shoestring.plan.estimate import Estimate
from shoestring.plan.inference import InferencePlan
from shoestring.plan.plan import Plan
from shoestring.report.terminal import comparison, estimate, inference, plan
from shoestring.report.terminal.console import SafeConsole

WIDTH = 100
"""Columns. A plan's summary has at most 25 lines of this width."""


@display.text.register
def _plan(answer: Plan) -> str:
    return plain(plan.summary(answer, full="shoestring plan --full"))


@display.text.register
def _estimate(answer: Estimate) -> str:
    return plain(estimate.screen(answer))


@display.text.register
def _inference(answer: InferencePlan) -> str:
    return plain(inference.screen(answer))


@display.text.register
def _comparison(answer: Comparison) -> str:
    return plain(comparison.screen(answer))


def plain(content: RenderableType) -> str:
    """Return what a terminal would show, without colors."""
    console = SafeConsole(file=StringIO(), width=WIDTH, color_system=None)
    with console.capture() as capture:
        console.print(content, crop=False)
    return "\n".join(line.rstrip() for line in capture.get().splitlines())
