"""The page of the events that a run records."""

from docs.generate.markdown import code, header, table

from shoestring.training.monitor.event_kinds import EVENT_KINDS, EVERY, EventKind

_INTRODUCTION = """
`events.jsonl` in a [run's directory](run_directory.md) is the record of the run. It has one line for each event, a JSON
object, and is only appended to: a line of an earlier session never changes. Bytes are integers, durations are numbers
of seconds, and a number that is not finite is a text, such as `"nan"`.

A session that continues from update u repeats the updates after u that an earlier session had made before it was
killed. Their events are in the record twice, and the later ones count. A kill can leave an incomplete last line, and
the next event starts on a new one. A line that is incomplete or whose checksum is wrong is no event.

In Python, `shoestring.watch(run)` reads the record while it grows.

## Fields of every event
"""
_KINDS = """## Kinds of events
A field whose name is followed by "(optional)" is missing where it does not apply.
"""


def page() -> str:
    """Return the page with a section for each kind of event."""
    overview = table(
        ("event", "meaning"), ((f"[`{name}`](#{name})", kind.meaning) for name, kind in EVENT_KINDS.items())
    )
    every = table(("field", "meaning"), ((code(name), meaning) for name, meaning in EVERY.items()))
    sections = [_section(name, kind) for name, kind in EVENT_KINDS.items()]
    return "\n".join([header("Events").rstrip("\n"), _INTRODUCTION.rstrip("\n"), every, _KINDS, overview, *sections])


def _section(name: str, kind: EventKind) -> str:
    rows = (
        (code(field) + (" (optional)" if field in kind.optional else ""), meaning)
        for field, meaning in kind.fields.items()
    )
    return f"### {name}\n{kind.meaning}\n\n{table(('field', 'meaning'), rows)}"
