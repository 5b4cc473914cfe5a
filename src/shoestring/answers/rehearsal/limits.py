"""The predicted time of a rehearsed script, and what it needs of the target's host memory and disk."""

from collections.abc import Iterator

from shoestring.answers.document import Fact, Inline, KeyFigure, Paragraph, Span
from shoestring.answers.rehearsal.verdict import plain
from shoestring.base.units import bytes_text, count_text, plural, seconds_text
from shoestring.runs.rehearse.rehearsal import Rehearsal


def facts(rehearsal: Rehearsal) -> Iterator[Fact]:
    """Yield the time of an update and of all updates, the host memory and the disk."""
    parts = rehearsal.time.parts if rehearsal.time else ()
    divided = " · ".join(f"{part} {seconds_text(seconds)}" for part, seconds in parts)
    yield Fact("time", [_update(rehearsal), *([Paragraph(divided)] if len(parts) > 1 else [])])
    if rehearsal.time:
        yield Fact("all updates", [_all_updates(rehearsal)])
    platform = rehearsal.target.platform
    if rehearsal.host_peak_bytes is not None:
        ram = platform.ram_bytes if platform else None
        yield Fact("host memory", [_share(rehearsal.host_peak_bytes, ram, rehearsal.target.name, "host memory")])
    disk = platform.disk_bytes if platform else None
    yield Fact("disk", [_share(rehearsal.disk_bytes, disk, rehearsal.target.name, "disk written")])


def _update(rehearsal: Rehearsal) -> Paragraph:
    time = rehearsal.time
    if time is None:
        return Paragraph("unknown: too few updates were made")
    typical, low, high = map(seconds_text, (time.update_seconds, time.low_seconds, time.high_seconds))
    text = f"{typical} per update (between {low} and {high})"
    return Paragraph(text, figure=KeyFigure("one update", typical, f"{low} to {high}, predicted"))


def _all_updates(rehearsal: Rehearsal) -> Paragraph:
    total = rehearsal.total_seconds
    if total is None or rehearsal.total_updates is None:
        return Paragraph("unknown: the script does not tell how many updates it makes; --total-updates N does")
    typical, low, high = map(seconds_text, total)
    source = f" (from {rehearsal.total_source})" if rehearsal.total_source else ""
    beginning = f"{count_text(rehearsal.total_updates)} updates{source} take {typical} (between {low} and {high})"
    sessions = _in_sessions(rehearsal)
    count = count_text(rehearsal.total_updates)
    figure = KeyFigure("all updates", typical, f"{low} to {high}; {count} updates{plain(sessions)}")
    return Paragraph([beginning, sessions], figure=figure)


def _in_sessions(rehearsal: Rehearsal) -> Inline:
    if not rehearsal.session_seconds or not rehearsal.sessions:
        return ""
    limit = seconds_text(rehearsal.session_seconds)
    if rehearsal.ends_in_time:
        return ["; ", Span("they end in time", "good"), f" in one session of {limit}"]
    if rehearsal.sessions == 1:
        return ["; ", Span("they may not end in time", "caution"), f" in one session of {limit}"]
    return [
        "; ",
        Span("they do not end in time", "bad"),
        f" in one session of {limit}: they take {plural(rehearsal.sessions, 'session')}",
    ]


def _share(used: int, limit: int | None, target: str, title: str) -> Paragraph:
    text = bytes_text(used)
    if limit is None:
        return Paragraph(text, figure=KeyFigure(title, text))
    of_limit = f"of {bytes_text(limit)} that {target} has"
    if used <= limit:
        return Paragraph(f"{text} {of_limit}", figure=KeyFigure(title, text, of_limit))
    figure = KeyFigure(title, text, f"{of_limit}: it does not fit")
    return Paragraph([Span(f"{text} {of_limit}", "bad"), ": it does not fit"], figure=figure)
