"""The findings of a check, failures highlighted."""

from shoestring.answers import wording
from shoestring.answers.document import (
    GAP,
    Code,
    Column,
    Document,
    Element,
    Inline,
    LineBreak,
    Paragraph,
    Span,
    Status,
    Table,
)
from shoestring.runs.check.finding import Finding
from shoestring.runs.check.preflight import CheckResult


def document(result: CheckResult) -> Document:
    """Return every finding with its hint, and a summary."""
    subject = f"{result.recipe} on {result.target}" if result.recipe else result.target
    rows = [(Status(finding.status), finding.name, _message(finding)) for finding in result.findings]
    passed = [index for index, finding in enumerate(result.findings) if finding.status == "pass"]
    preview: list[Element] = [Code(result.preview, "a sample of the data"), GAP] if result.preview else []
    return Document(
        title=f"Check of this machine for {subject}",
        status=result.status,
        sentences=[Span(f"check of this machine for {subject}", "strong")],
        content=[
            *preview,
            *wording.note_lines(result.notes),
            Table([Column(), Column(), Column()], rows, folded=passed, folded_title="What passes"),
            _summary(result),
        ],
    )


def _message(finding: Finding) -> Inline:
    return [finding.message, LineBreak(), Span(finding.hint, "faint")] if finding.hint else finding.message


def _summary(result: CheckResult) -> Paragraph:
    failures, warnings = (
        ", ".join(finding.name for finding in result.findings if finding.status == status)
        for status in ("fail", "warn")
    )
    if failures:
        return Paragraph(f"fails: {failures}", "bad")
    if warnings:
        return Paragraph(f"passes with warnings: {warnings}", "caution")
    return Paragraph("passes", "good")
