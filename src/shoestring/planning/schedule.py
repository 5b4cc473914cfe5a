"""When a run does its work: its sessions and weeks, the phases before the whole run, and what people ask of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from shoestring.base.settings import Settings
from shoestring.hardware.catalog import Target
from shoestring.planning.answers import Answer, answers, single_session_answers
from shoestring.planning.counts import Counts
from shoestring.planning.phases import Phase, phases
from shoestring.planning.proposals.proposal import Proposal
from shoestring.planning.sessions import PlannedSession, PlannedWeek, Work, sessions, weeks
from shoestring.recipe.options import LoadedRecipe


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """The fields of a plan of this name, which follow from the durations of the run's work."""

    sessions: tuple[PlannedSession, ...]
    weeks: tuple[PlannedWeek, ...]
    answers: tuple[Answer, ...] = ()
    phases: tuple[Phase, ...] = ()


def make_schedule(
    loaded: LoadedRecipe,
    requested: Settings,
    target: Target,
    *,
    counts: Counts,
    work: Work | None,
    with_commands: bool,
    update_seconds: float | None = None,
    proposed: Sequence[Proposal] = (),
) -> Schedule:
    """Return the schedule of `work`, None if its time is unknown. `with_commands`: with the answers and the phases.

    `update_seconds` is the prediction of an update that the times of the proposals are compared with.
    """
    platform = target.platform
    weekly_hours = platform.weekly_gpu_hours if platform else None
    planned = None
    if work is not None and counts.per_epoch is not None:
        planned = sessions(
            work,
            total_updates=counts.total,
            updates_per_epoch=counts.per_epoch,
            session_hours=platform.session_hours if platform else None,
            weekly_hours=weekly_hours,
        )
    calendar = weeks(planned or (), weekly_hours)
    schedule = Schedule(sessions=tuple(planned or ()), weeks=tuple(calendar))
    if not with_commands:
        return schedule
    planned_answers = answers(
        loaded, requested, target, counts=counts, sessions=schedule.sessions, weeks=schedule.weeks
    )
    if len(schedule.sessions) > 1 and planned_answers and work and update_seconds:
        planned_answers[-1:-1] = single_session_answers(
            loaded,
            requested,
            target,
            counts=counts,
            work=work,
            update_seconds=update_seconds,
            proposed=proposed,
        )
    planned_phases = [] if loaded.has_placeholder_data else phases(loaded, requested, target, counts=counts, work=work)
    return Schedule(
        sessions=schedule.sessions,
        weeks=schedule.weeks,
        answers=tuple(planned_answers),
        phases=tuple(planned_phases),
    )
