"""The findings of a check in a terminal, with failures highlighted."""

from collections.abc import Iterable

from rich.console import Group, RenderableType
from rich.text import Text

from shoestring.answers.terminal.elements import grid
from shoestring.base.streams import message_text, one_line, printable
from shoestring.runs.check.preflight import CheckResult

_MARKS = {"pass": ("✓", "green"), "warn": ("!", "bold yellow"), "fail": ("✗", "bold red")}


def screen(result: CheckResult) -> RenderableType:
    """Show every finding with its mark and its hint, and a summary."""
    table = grid()
    for finding in result.findings:
        mark, style = _MARKS[finding.status]
        text = Text(message_text(finding.message))
        if finding.hint:
            text.append(f"\n{message_text(finding.hint)}", style="dim")
        table.add_row(Text(f"{mark} {finding.status}", style=style), finding.name, text)
    subject = f"{one_line(result.recipe)} on {result.target}" if result.recipe else result.target
    preview = [Text(printable(result.preview)), Text()] if result.preview else []
    return Group(Text(f"check of this machine for {subject}", style="bold"), *preview, table, _summary(result))


def _summary(result: CheckResult) -> Text:
    failures = _names(result, "fail")
    warnings = _names(result, "warn")
    if failures:
        return Text(f"fails: {', '.join(failures)}", style="bold red")
    if warnings:
        return Text(f"passes with warnings: {', '.join(warnings)}", style="bold yellow")
    return Text("passes", style="bold green")


def _names(result: CheckResult, status: str) -> Iterable[str]:
    return [finding.name for finding in result.findings if finding.status == status]
