"""The sessions of a plan within the weeks of the platform's quota."""

from collections.abc import Iterator, Sequence

from shoestring.answers.markup import EMPTY, Markup, element
from shoestring.answers.notebook import drawing
from shoestring.answers.notebook.layout import BLUE, FAINT, section
from shoestring.base.units import plural, seconds_text
from shoestring.planning.plan import Plan
from shoestring.planning.sessions import PlannedSession

_MOST_WEEKS, _MOST_SESSIONS = 6, 60
"""More of them are counted and not drawn."""


def sessions(plan: Plan) -> Markup:
    """Render a bar for each week, as wide as its quota, or for the run; nothing if the time is unknown."""
    if not plan.sessions or plan.hours is None:
        return EMPTY
    platform = plan.target.platform
    limit = platform.session_hours if platform else None
    bound = f" of at most {seconds_text(limit * 3600)}" if limit else ""
    weeks = list(_weeks(plan))
    rows = [_row(name, hours, whole) for name, hours, whole in weeks[:_MOST_WEEKS]]
    omitted = len(weeks) - _MOST_WEEKS
    return section(
        "Sessions",
        element("div", f"{plural(len(plan.sessions), 'session')}{bound}; {seconds_text(plan.hours * 3600)} in all"),
        rows,
        element("div", f"and {plural(omitted, 'more week')}", style=FAINT) if omitted > 0 else EMPTY,
    )


def _weeks(plan: Plan) -> Iterator[tuple[str, list[float], float]]:
    """Yield the name of each week, the hours of its sessions, and the hours of its whole bar."""
    platform = plan.target.platform
    quota = platform.weekly_gpu_hours if platform else None
    if not plan.weeks or not quota:
        hours = _hours(plan.sessions)
        yield "run", hours, max(sum(hours), 1e-9)
        return
    first = 0
    for week in plan.weeks:
        yield f"week {week.week}", _hours(plan.sessions[first : first + week.sessions]), quota
        first += week.sessions


def _hours(planned: Sequence[PlannedSession]) -> list[float]:
    hours = [session.hours for session in planned]
    if len(hours) > _MOST_SESSIONS:
        return [sum(hours)]
    return hours


def _row(name: str, hours: Sequence[float], whole: float) -> Markup:
    bar = drawing.bar([(BLUE, session_hours / whole) for session_hours in hours], height=16, least="3px")
    used = seconds_text(sum(hours) * 3600)
    text = used if sum(hours) >= whole else f"{used} of {whole:g} h"
    return element(
        "div",
        element("span", name, style="flex:0 0 60px"),
        " ",
        element("div", bar, style="flex:1 1 90px"),
        " ",
        element("span", text, style="flex:0 0 130px;text-align:right"),
        style="display:flex;flex-wrap:wrap;align-items:center;gap:0 10px;font-size:12px;margin-top:3px",
    )
