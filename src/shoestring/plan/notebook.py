"""A plan and an estimate as a notebook shows them: one self-contained piece of HTML, without scripts."""

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from shoestring.units import bytes_text, count_text, seconds_text

_STYLES = {
    "box": "font-family:system-ui,sans-serif;line-height:1.45;max-width:60em",
    "cell": "text-align:left;padding:1px 12px 1px 0;vertical-align:top",
    "bar": "display:inline-block;height:0.7em;background:#2a7ab0;width:{width:.1f}em",
    "good": "color:#1a7f37;font-weight:bold",
    "bad": "color:#b3261e;font-weight:bold",
}


def plan(answer: Mapping[str, Any]) -> str:
    """The HTML of a plan's JSON."""
    time, sessions = answer["time"], answer["sessions"]
    rows = [
        ("settings", _settings(answer["settings"])),
        ("memory", _memory(answer["memory"])),
        ("time", _time(time)),
        ("sessions", f"{len(sessions)}, {len(answer['weeks']) or '–'} weeks of the quota" if sessions else "–"),
        ("disk", bytes_text(answer["disk"]["peak_bytes"]) + " at its fullest"),
        ("limits", _limits(answer["limits"])),
        ("because", _lines(answer["reasons"])),
        ("notes", _lines(answer["notes"])),
        ("would do", _lines(answer["changes"])),
        ("advice", _lines(answer["advice"])),
        ("if memory ends", escape(" → ".join(answer["ladder"]))),
        ("proposals", _proposals(answer["proposals"])),
        ("run it", _lines((f"{each['name']}: {each['command']}" for each in answer["phases"]), tag="code")),
    ]
    title = f"{answer['recipe']} on {answer['target']}"
    return _page(title, answer["memory"]["parameters"]["total"], answer["verdict"], rows)


def estimate(recipe: str, answer: Mapping[str, Any]) -> str:
    """The HTML of an estimate's JSON."""
    rows = [("settings", _settings(answer["settings"])), ("memory", _memory(answer))]
    verdict = "fits" if answer["fits"] else "does not fit"
    return _page(f"{recipe} on {answer['target']}", answer["parameters"]["total"], verdict, rows)


def comparison(rows: Sequence[Mapping[str, Any]]) -> str:
    """The HTML of a comparison's rows."""
    columns = ("target", "verdict", "an update", "in all", "sessions", "weeks", "US$")

    def cells(row: Mapping[str, Any]) -> Iterable[str]:
        seconds = (row["update_seconds"], row["total_seconds"])
        cost = "unknown" if row["usd"] is None else f"{row['usd']:.2f}"
        return (
            row["target"],
            row["verdict"],
            *("unknown" if each is None else seconds_text(each) for each in seconds),
            *("–" if row[name] is None else str(row[name]) for name in ("sessions", "weeks")),
            cost,
        )

    head = "".join(f'<th style="{_STYLES["cell"]}">{column}</th>' for column in columns)
    body = "".join(
        "<tr>" + "".join(f'<td style="{_STYLES["cell"]}">{escape(cell)}</td>' for cell in cells(row)) + "</tr>"
        for row in rows
    )
    return f'<div style="{_STYLES["box"]}"><table><tr>{head}</tr>{body}</table></div>'


def _page(title: str, parameters: int, verdict: str, rows: Iterable[tuple[str, str]]) -> str:
    kind = "good" if verdict == "fits" else "bad"
    body = "".join(
        f'<tr><th style="{_STYLES["cell"]}">{escape(name)}</th><td style="{_STYLES["cell"]}">{content}</td></tr>'
        for name, content in rows
        if content
    )
    return (
        f'<div style="{_STYLES["box"]}"><div><b>{escape(title)}</b> · {count_text(parameters)} parameters · '
        f'<span style="{_STYLES[kind]}">{escape(verdict)}</span></div><table>{body}</table></div>'
    )


def _settings(settings: Mapping[str, Any]) -> str:
    names = ("micro_batch", "precision", "checkpointing", "optimizer_kernel")
    return escape(" · ".join(f"{name} {settings[name]}" for name in names if settings[name] is not None))


def _memory(memory: Mapping[str, Any]) -> str:
    parts = sorted(memory["parts"], key=lambda part: -part["bytes"])
    largest = max((part["bytes"] for part in parts), default=1)
    bars = "".join(
        f'<tr title="{escape(part["source"])}"><td style="{_STYLES["cell"]}">{escape(part["name"])}</td>'
        f'<td style="{_STYLES["cell"]}">{bytes_text(part["bytes"])}</td>'
        f'<td><span style="{_STYLES["bar"].format(width=20 * part["bytes"] / largest)}"></span></td></tr>'
        for part in parts
    )
    return (
        f"{bytes_text(memory['peak_bytes'])} at the peak, between {bytes_text(memory['low_bytes'])} and "
        f"{bytes_text(memory['high_bytes'])}, of {bytes_text(memory['capacity_bytes'])}<table>{bars}</table>"
    )


def _time(time: Mapping[str, Any]) -> str:
    if time["update_seconds"] is None:
        return "unknown"
    text = f"{seconds_text(time['update_seconds'])} an update"
    if time["total_seconds"] is None:
        return text
    low, high = time["low_total_seconds"], time["high_total_seconds"]
    return (
        f"{text} · {seconds_text(time['total_seconds'])} in all (between {seconds_text(low)} and {seconds_text(high)})"
    )


def _limits(limits: Sequence[Mapping[str, Any]]) -> str:
    def text(limit: Mapping[str, Any]) -> str:
        write = bytes_text if limit["unit"] == "bytes" else seconds_text
        mark = "" if limit["holds"] else ", too much"
        return f"{limit['name']} {write(limit['needs'])} of {write(limit['has'])}{mark}"

    return _lines(map(text, limits))


def _proposals(found: Sequence[Mapping[str, Any]]) -> str:
    return _lines(
        f"{each['name']} {' '.join(f'{key}={value}' for key, value in each['values'].items())}: "
        + (bytes_text(each["peak_bytes"]) if each["peak_bytes"] else each["note"])
        for each in found
    )


def _lines(texts: Iterable[str], tag: str = "span") -> str:
    return "<br>".join(f"<{tag}>{escape(text)}</{tag}>" for text in texts)
