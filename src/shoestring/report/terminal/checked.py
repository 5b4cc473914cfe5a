"""A check as a person reads it in a terminal: what fails first catches the eye, what passes takes one line each."""

from collections.abc import Iterable

from rich.console import Group, RenderableType
from rich.text import Text

from shoestring.check.preflight import Checked
from shoestring.report.terminal.elements import grid

_MARKS = {"pass": ("✓", "green"), "warn": ("!", "bold yellow"), "fail": ("✗", "bold red")}


def screen(checked: Checked) -> RenderableType:
    """Every line with its mark, the hints below what they are about, and the sum of it."""
    table = grid()
    for finding in checked.findings:
        mark, style = _MARKS[finding.status]
        text = Text(finding.message)
        if finding.hint:
            text.append(f"\n{finding.hint}", style="dim")
        table.add_row(Text(f"{mark} {finding.status}", style=style), finding.name, text)
    what = f"{checked.recipe} on {checked.target}" if checked.recipe else checked.target
    return Group(Text(f"check of this machine for {what}", style="bold"), table, _sum(checked))


def _sum(checked: Checked) -> Text:
    failures = _names(checked, "fail")
    warnings = _names(checked, "warn")
    if failures:
        return Text(f"fails: {', '.join(failures)}", style="bold red")
    if warnings:
        return Text(f"passes; mind: {', '.join(warnings)}", style="bold yellow")
    return Text("passes", style="bold green")


def _names(checked: Checked, status: str) -> Iterable[str]:
    return [finding.name for finding in checked.findings if finding.status == status]
