"""A chain of sessions on Kaggle, and what would be sent."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shoestring.answers.document import Column, Document, Element, Paragraph, Span, Table
from shoestring.base import shell
from shoestring.base.streams import one_line
from shoestring.base.units import bytes_text, plural, seconds_text


def document(chain: Mapping[str, Any], run: Path) -> Document:
    """Return the state of a chain, its sessions, and the command for the next step."""
    until = f"; until {chain['waiting_until']}" if chain["waiting_until"] else ""
    state = f"{chain['status']}: {chain['reason']}{until}"
    content: list[Element] = []
    total, sessions = chain["total_updates"], chain["sessions"]
    if total:
        content.append(Paragraph(f"update {chain['update']:,} of {total:,} in {plural(len(sessions), 'session')}"))
    if chain["forecast"]:
        content.append(Paragraph(chain["forecast"]["text"]))
    if sessions:
        content.append(Table([Column()] * 5, list(map(_row, sessions))))
    if chain.get("kaggle"):
        content.append(Paragraph(f"Kaggle says: {chain['kaggle']['status']} {chain['kaggle']['message']}".strip()))
    if chain.get("note"):
        content.append(Paragraph(chain["note"]))
    content.append(Paragraph(_next(chain["status"], run), can_wrap=False))
    return Document(
        title=f"{run} on Kaggle", status=chain["status"], sentences=[Span(state, "strong")], content=content
    )


def _row(session: Mapping[str, Any]) -> tuple[str, ...]:
    duration = (session["ended_at"] or 0) - (session["started_at"] or 0)
    return (
        f"session {session['number']}",
        session["outcome"] or session["status"],
        f"update {session['update']}" if session["update"] is not None else "",
        seconds_text(duration) if session["ended_at"] and session["started_at"] and duration > 0 else "",
        session["reason"].partition("\n")[0][:200],
    )


def preview(sent: Mapping[str, Any]) -> Document:
    """Return the requests and the files that would be sent."""
    content: list[Element] = []
    for request in sent["requests"]:
        content.append(Paragraph(f"{request['service']}/{request['method']}", "strong"))
        content += [Paragraph(f"  {name}: {one_line(str(value))}") for name, value in request["body"].items()]
    content.append(Paragraph("files", "strong"))
    content += [Paragraph(f"  {file['path']}  {bytes_text(file['bytes'])}") for file in sent["files"]]
    if sent["plan"] is None:
        content.append(
            Paragraph(
                "no plan is made: the run has one, only Kaggle knows the number of rows (--set rows=N), or PyTorch is "
                "missing"
            )
        )
    content.append(Paragraph("script.py in full: --dry-run --json, key script"))
    content.append(Paragraph(f"{bytes_text(sent['total_bytes'])} in all; nothing has been sent"))
    return Document(title="What would be sent to Kaggle", sentences=[], content=content)


def _next(status: str, run: Path) -> str:
    directory = shell.quote(run)
    if status == "finished":
        return f"the run is in {directory}: shoestring report {directory}"
    start = f"go on: shoestring kaggle start --run {directory}"
    return start if status in ("failed", "stopped") else f"{start}; stop: shoestring kaggle stop --run {directory}"
