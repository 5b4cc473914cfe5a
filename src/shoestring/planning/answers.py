"""What people ask of a plan: how far one session comes, how far a week, what would make the run a single session, and
when all of it is done.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from shoestring.base.settings import Settings
from shoestring.base.units import count_text, plural, seconds_text
from shoestring.hardware.catalog import Target
from shoestring.planning.commands import is_sent, training_command
from shoestring.planning.counts import Counts
from shoestring.planning.proposals.proposal import Proposal
from shoestring.planning.sessions import PlannedSession, PlannedWeek, Work, sessions, times
from shoestring.recipe.options import LoadedRecipe

_WEEK_HOURS = 7 * 24.0


@dataclass(frozen=True, kw_only=True)
class Answer:
    """An answer to a question about a plan, with the command that does it."""

    question: str
    """What is asked, such as "in one session"."""
    answer: str
    """The answer for people."""
    command: str
    """The command to type; empty for a recipe that exists only in this process."""

    def json(self) -> dict[str, Any]:
        return asdict(self)


def answers(
    loaded: LoadedRecipe,
    requested: Settings,
    target: Target,
    *,
    counts: Counts,
    sessions: Sequence[PlannedSession],
    weeks: Sequence[PlannedWeek],
) -> list[Answer]:
    """Return the answers for a run of these sessions and weeks; none for a run whose time is unknown."""
    if not sessions or not counts.per_epoch or loaded.is_live:
        return []
    result = [_part("in one session", loaded, requested, target, counts, sessions[:1])]
    if weeks:
        result.append(_part("in one week", loaded, requested, target, counts, sessions[: weeks[0].sessions]))
    finish = seconds_text(calendar_hours(sessions, weeks) * 3600)
    last = f"in the last of {plural(len(weeks), 'week')}, " if len(weeks) > 1 else ""
    repetition = "" if is_sent(target) or len(sessions) == 1 else f", typed {plural(len(sessions), 'time')}"
    result.append(
        Answer(
            question="all of it",
            answer=f"done {last}{finish} after the start at the latest{repetition}",
            command=training_command(loaded, requested, target),
        )
    )
    return result


def single_session_answers(
    loaded: LoadedRecipe,
    requested: Settings,
    target: Target,
    *,
    counts: Counts,
    work: Work,
    update_seconds: float,
    proposed: Sequence[Proposal],
) -> Iterator[Answer]:
    """Yield the first proposal with which a run of several sessions is predicted to need only one, if there is any.

    `update_seconds` is the prediction of an update that the times of the proposals are compared with. What follows an
    epoch is assumed to take as long as without the proposal.
    """
    assert counts.per_epoch
    faster = [
        proposal
        for proposal in proposed
        if proposal.fits
        and proposal.trains
        and proposal.values
        and (proposal.update_seconds or update_seconds) < update_seconds
    ]
    for proposal in sorted(faster, key=lambda proposal: proposal.changes_learning):
        assert proposal.update_seconds
        planned = sessions(
            replace(work, update=times(work.update, proposal.update_seconds / update_seconds)),
            total_updates=counts.total,
            updates_per_epoch=counts.per_epoch,
            session_hours=target.platform.session_hours if target.platform else None,
            max_sessions=1,
        )
        if planned:
            result = (
                "which changes the training result" if proposal.changes_learning else "with the same training result"
            )
            duration = seconds_text(planned[0].hours * 3600)
            yield Answer(
                question="all in one session",
                answer=f"{proposal.name} ({proposal.command}): at most {duration}, {result}",
                command=training_command(loaded, requested, target, changes=proposal.values),
            )
            return


def calendar_hours(sessions: Sequence[PlannedSession], weeks: Sequence[PlannedWeek]) -> float:
    """Return the hours from the start of the first session to the end of the last, if each begins at once.

    A week's quota is refreshed at most a week after the first use of it, so the last week begins so many weeks later.
    """
    if not weeks:
        return sum(session.hours for session in sessions)
    return (len(weeks) - 1) * _WEEK_HOURS + weeks[-1].hours


def _part(
    question: str,
    loaded: LoadedRecipe,
    requested: Settings,
    target: Target,
    counts: Counts,
    sessions: Sequence[PlannedSession],
) -> Answer:
    """Return how far these sessions come, and the command for a run that is finished with them."""
    assert counts.per_epoch
    updates, hours = sum(session.updates for session in sessions), sum(session.hours for session in sessions)
    epochs = math.floor(10 * updates / counts.per_epoch) / 10  # 5.97 epochs are not 6
    if updates >= counts.total:
        return Answer(
            question=question,
            answer=f"all of it, in {seconds_text(hours * 3600)}",
            command=training_command(loaded, requested, target),
        )
    whole_epochs, of_epochs = updates // counts.per_epoch, counts.total / counts.per_epoch
    changes = (
        {"epochs": whole_epochs} if whole_epochs and loaded.parts.learning.phases == 1 else {"max_updates": updates}
    )
    return Answer(
        question=question,
        answer=(f"{count_text(updates)} of {count_text(counts.total)} updates, {epochs:g} of {of_epochs:g} epochs"),
        command=training_command(loaded, requested, target, changes=changes),
    )
