"""A chain of sessions on Kaggle in a terminal, and what would be sent."""

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from shoestring.answers.terminal.elements import grid
from shoestring.base.streams import message_text, one_line
from shoestring.base.units import bytes_text, plural, seconds_text


def screen(chain: Mapping[str, Any], run: Path) -> RenderableType:
    """Show the state of a chain, its sessions, and the command for the next step."""
    status, reason = chain["status"], chain["reason"]
    until = f"; until {chain['waiting_until']}" if chain["waiting_until"] else ""
    lines: list[RenderableType] = [Text(message_text(f"{status}: {reason}{until}"), style="bold")]
    total = chain["total_updates"]
    if total:
        lines.append(Text(f"update {chain['update']:,} of {total:,} in {plural(len(chain['sessions']), 'session')}"))
    if chain["forecast"]:
        lines.append(Text(message_text(chain["forecast"]["text"])))
    rows = grid()
    for session in chain["sessions"]:
        duration = (session["ended_at"] or 0) - (session["started_at"] or 0)
        rows.add_row(
            f"session {session['number']}",
            one_line(session["outcome"] or session["status"]),
            f"update {session['update']}" if session["update"] is not None else "",
            seconds_text(duration) if session["ended_at"] and session["started_at"] and duration > 0 else "",
            one_line(session["reason"].partition("\n")[0])[:200],
        )
    if chain["sessions"]:
        lines.append(rows)
    if chain.get("kaggle"):
        lines.append(Text(one_line(f"Kaggle says: {chain['kaggle']['status']} {chain['kaggle']['message']}".strip())))
    if chain.get("note"):
        lines.append(Text(one_line(chain["note"])))
    lines.append(Text(_next(status, run), no_wrap=True, overflow="ignore"))
    return Group(*lines)


def preview_screen(sent: Mapping[str, Any]) -> RenderableType:
    """Show the requests and the files that would be sent."""
    lines: list[RenderableType] = []
    for request in sent["requests"]:
        lines.append(Text(f"{request['service']}/{request['method']}", style="bold"))
        lines += [Text(f"  {name}: {one_line(str(value))}") for name, value in request["body"].items()]
    lines.append(Text("files", style="bold"))
    lines += [Text(f"  {one_line(file['path'])}  {bytes_text(file['bytes'])}") for file in sent["files"]]
    if sent["plan"] is None:
        lines.append(
            Text(
                "no plan is made: the run has one, only Kaggle knows the number of rows (--set rows=N), or PyTorch is "
                "missing"
            )
        )
    lines.append(Text("script.py in full: --dry-run --json, key script"))
    lines.append(Text(f"{bytes_text(sent['total_bytes'])} in all; nothing has been sent"))
    return Group(*lines)


def _next(status: str, run: Path) -> str:
    directory = shlex.quote(str(run))
    if status == "finished":
        return one_line(f"the run is in {directory}: shoestring report {directory}")
    if status in ("failed", "stopped"):
        return one_line(f"go on: shoestring kaggle start --run {directory}")
    return one_line(f"go on: shoestring kaggle start --run {directory}; stop: shoestring kaggle stop --run {directory}")
