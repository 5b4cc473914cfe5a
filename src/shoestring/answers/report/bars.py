"""Bar figures: the parts of the planned memory, and the timeline of the sessions."""

from shoestring.answers.document import Breakdown, Interval, Part, Timeline
from shoestring.answers.report.run import Run
from shoestring.answers.values import lookup, numbers
from shoestring.base.reading import number
from shoestring.training.session.ledger import SessionRecord, pauses


def memory_parts(run: Run) -> Breakdown:
    """Return the planned peak by its parts, with its range, the measured peak and the capacity."""
    memory = numbers(lookup(run.plan, "plan", "memory"))
    part_list = lookup(run.plan, "plan", "memory", "parts")
    parts = [
        Part(str(lookup(part, "name")), value, str(lookup(part, "source") or ""))
        for part in (part_list if isinstance(part_list, list) else [])
        if (value := number(lookup(part, "bytes"))) is not None and value > 0
    ]
    total = sum(part.bytes for part in parts)
    return Breakdown(
        title="Planned memory",
        caption="At its peak, by part",
        label="Parts of the planned memory",
        is_wide=True,
        parts=parts,
        low=memory.get("low_bytes", total),
        high=memory.get("high_bytes", total),
        capacity=memory.get("capacity_bytes"),
        measured=run.measured_bytes,
    )


def timeline(session_records: list[SessionRecord]) -> Timeline:
    """Return the sessions over wall-clock time, with their final status."""
    return Timeline(
        title="Timeline",
        caption="Numbers identify the sessions.",
        label="Sessions on the wall clock",
        is_wide=True,
        intervals=[
            Interval(
                name=str(session.number),
                start=session.start,
                end=session.end,
                status=session.ended,
                moments=session.saves,
                ends_with_a_kill=session.ended == "killed",
            )
            for session in session_records
        ],
        pauses=list(pauses(session_records)),
        moments="save",
    )
