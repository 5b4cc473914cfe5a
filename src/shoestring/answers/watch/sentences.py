"""What a terminal and a notebook say of a run that is being watched."""

from collections.abc import Mapping

from shoestring.answers.values import UNKNOWN, count, duration, size, timestamp
from shoestring.answers.watch.view import View
from shoestring.base.units import plural

_SILENCE = 30.0
"""Seconds without an event after which they are counted."""


def explanation(view: View) -> str:
    """Say what a status means, or why the last session ended."""
    silence = f"no event for {duration(view.seconds_since_event)}"
    return {
        "starting": "the run is being planned, or its first session is starting",
        "killed": "the process of the session has ended without notice",
        "silent": f"{silence}: the session was killed, this is an old copy, or it is busy with something long",
        "running": silence if view.seconds_since_event > _SILENCE else "",
        "unknown": "state.json contains no status",
    }.get(view.status, view.reason)


def can_continue(view: View) -> bool:
    """Return whether `view.next` is a command that continues the run."""
    return bool(view.next) and view.status in ("killed", "silent", "paused", "failed")


def speed(view: View) -> str:
    """Return the measured speed beside the planned one; empty while there is none."""
    if view.samples_per_second is None:
        return ""
    planned = view.planned_update_seconds
    text = f"{number_text(view.samples_per_second)} samples/s · {duration(view.update_seconds)} an update"
    return text + (f" (planned {duration(planned)})" if planned is not None else "")


def time(view: View) -> str:
    """Return the time of all sessions and their number."""
    killed = f", {count(view.killed_sessions)} of them killed" if view.killed_sessions else ""
    return f"{duration(view.seconds)} in {plural(view.session, 'session')}{killed}"


def time_left(view: View) -> str:
    """Return the time that is left, and when a run that trains will end; without the date if it is that of today."""
    text = f"about {duration(view.seconds_left)}"
    if view.status != "running" or view.last_event_time is None or view.seconds_left is None:
        return text
    date = timestamp(view.last_event_time)[: len("2000-01-01 ")]
    return f"{text}, until {timestamp(view.last_event_time + view.seconds_left).removeprefix(date)}"


def planned_memory(planned: Mapping[str, int]) -> str:
    """Return the memory of the plan, to follow the measured one; empty if it is not known."""
    texts = {name: size(value) for name, value in planned.items()}
    if "peak_bytes" not in texts:
        return ""
    bounds = f" ({texts['low_bytes']} to {texts['high_bytes']})" if {"low_bytes", "high_bytes"} <= texts.keys() else ""
    capacity = f" of {texts['capacity_bytes']}" if "capacity_bytes" in texts else ""
    return f" · planned {texts['peak_bytes']}{bounds}{capacity}"


def number_text(value: float | None) -> str:
    if value is None:
        return UNKNOWN
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
