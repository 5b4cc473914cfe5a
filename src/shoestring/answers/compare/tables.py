"""What distinguishes the runs of a comparison: options, metrics with their errors, time, memory, cost."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import median
from typing import Any

from shoestring.answers.compare.compared import ComparedRun
from shoestring.answers.document import Cell, Column, Element, Paragraph, Section, Status, Swatch, Table
from shoestring.answers.metrics import ERROR, is_better_if_smaller, is_qualifier, with_error
from shoestring.answers.report.results import final_metrics
from shoestring.answers.values import UNKNOWN, count, duration, lookup, numbers, share, size, value_text, words
from shoestring.base.reading import number
from shoestring.base.units import plural

_PARTS = ("validation", "test")


def overview(runs: Sequence[ComparedRun]) -> Section:
    """Return what each run is and how far it has come."""
    rows: dict[str, Callable[[ComparedRun], Cell]] = {
        "recipe": lambda compared: compared.run.name,
        "status": lambda compared: Status(compared.run.status),
        "updates": lambda compared: (
            f"{count(compared.run.state.get('update'))} of {count(compared.run.state.get('total_updates'))}"
        ),
        "parameters": lambda compared: count(lookup(compared.run.plan, "plan", "memory", "parameters", "total")),
        "device": lambda compared: ", ".join(dict.fromkeys(session.device for session in compared.sessions)) or UNKNOWN,
    }
    return Section("", [_by_run(runs, [[name, *(cell(run) for run in runs)] for name, cell in rows.items()])])


def differences(runs: Sequence[ComparedRun]) -> Section:
    """Return the options, the settings and the versions that differ."""
    sources = {
        "Options": [lookup(compared.run.plan, "options") for compared in runs],
        "Settings": [lookup(compared.run.plan, "plan", "settings") for compared in runs],
        "Versions": [_versions(compared) for compared in runs],
    }
    parts: list[Element] = []
    equal = 0
    for title, values in sources.items():
        objects = [value if isinstance(value, dict) else {} for value in values]
        names = list(dict.fromkeys(name for entry in objects for name in entry))
        different = [name for name in names if any(entry.get(name) != objects[0].get(name) for entry in objects)]
        equal += len(names) - len(different)
        if different:
            rows: list[list[Cell]] = [[name, *(_option_text(name, entry) for entry in objects)] for name in different]
            parts.append(Section(title, [_by_run(runs, rows)]))
    equality = f"{plural(equal, 'option, setting or version', 'options, settings and versions')} are equal in all runs."
    text = equality if parts else f"None: {equality}"
    return Section("Differences", [*parts, Paragraph(text, "faint")])


def metrics(runs: Sequence[ComparedRun]) -> Iterator[Section]:
    """Yield the final metrics that all runs have, and which run is the best beyond twice the standard error."""
    rows: list[list[Cell]] = []
    omitted: dict[str, None] = {}
    for part in _PARTS:
        columns = [final_metrics(compared.run, part) for compared in runs]
        names = dict.fromkeys(name for column in columns for name in numbers(column) if not is_qualifier(name))
        for name in names:
            if all(name in numbers(column) for column in columns):
                cells = [with_error(column, name) for column in columns]
                rows.append([f"{words(name)} ({part})", *cells, verdict(name, [run.name for run in runs], columns)])
            else:
                omitted[f"{words(name)} ({part})"] = None
    notes = []
    if rows:
        notes.append(
            "A run is worse if it differs from the best by more than twice the standard error of the difference, with "
            "the errors of both taken as independent."
        )
    if omitted:
        notes.append(f"Not compared, since not all runs have them: {', '.join(omitted)}.")
    if rows or omitted:
        table = _by_run(runs, rows, "comparison") if rows else Paragraph("The runs have no metric in common.")
        yield Section("Metrics", [table, *(Paragraph(note, "faint") for note in notes)])


def verdict(name: str, names: Sequence[str], columns: Sequence[Mapping[str, Any]]) -> str:
    """Say which run has the best value of a metric, and which ones cannot be distinguished from it."""
    values = [numbers(column)[name] for column in columns]
    errors = [number(column.get(name + ERROR)) for column in columns]
    best_value = min(values) if is_better_if_smaller(name) else max(values)
    best = [run for run, value in zip(names, values, strict=True) if value == best_value]
    if len(best) == len(names):
        return "equal"
    if any(error is None for error in errors):
        return f"{', '.join(best)} best; errors are unknown"
    best_error = errors[values.index(best_value)] or 0.0
    close: list[str] = []
    worse: list[str] = []
    for run, value, error in zip(names, values, errors, strict=True):
        if value != best_value:
            is_close = abs(value - best_value) <= 2 * math.hypot(error or 0.0, best_error)
            (close if is_close else worse).append(run)
    texts = [
        f"{', '.join(best)} best",
        f"{', '.join(worse)} worse" if worse else "",
        f"{', '.join(close)} within two standard errors" if close else "",
    ]
    return "; ".join(filter(None, texts))


def resources(runs: Sequence[ComparedRun]) -> Section:
    """Return time, sessions, cost and memory."""
    rows: dict[str, Callable[[ComparedRun], str]] = {
        "time of all sessions": lambda compared: duration(compared.seconds),
        "planned training": lambda compared: duration(lookup(compared.run.plan, "plan", "time", "total_seconds")),
        "sessions": _sessions,
        "updates repeated after kills": lambda compared: count(sum(s.redone_updates for s in compared.sessions)),
        "one update (median)": lambda compared: duration(_update_seconds(compared)),
        "one update, planned": lambda compared: duration(lookup(compared.run.plan, "plan", "time", "update_seconds")),
        "waiting for data": lambda compared: share(
            sum(session.waiting_seconds for session in compared.sessions), compared.seconds
        ),
        "time with a GPU": lambda compared: duration(_gpu_seconds(compared) or None),
        "cost at the list price": _cost,
        "peak memory": lambda compared: size(compared.run.measured_bytes),
        "peak memory, planned": lambda compared: size(lookup(compared.run.plan, "plan", "memory", "peak_bytes")),
    }
    texts: list[list[Cell]] = [[name, *map(cell, runs)] for name, cell in rows.items()]
    known = [row for row in texts if any(cell != UNKNOWN for cell in row[1:])]
    return Section("Time and memory", [_by_run(runs, known)])


def _by_run(runs: Sequence[ComparedRun], rows: Sequence[Sequence[Cell]], *last: str) -> Table:
    """Return a table with a column for each run."""
    columns = [Column([Swatch(compared.color), compared.name]) for compared in runs]
    return Table([Column(), *columns, *map(Column, last)], rows)


def _option_text(name: str, values: Mapping[str, Any]) -> str:
    if name not in values:
        return UNKNOWN
    return "none" if values[name] is None else value_text(name, values[name])


def _versions(compared: ComparedRun) -> Any:
    versions = [lookup(event, "versions") for event in compared.run.events_of("session")]
    return versions[-1] if versions else {}


def _sessions(compared: ComparedRun) -> str:
    kills = sum(session.ended == "killed" for session in compared.sessions)
    return f"{len(compared.sessions)}{f', {kills} of them killed' if kills else ''}"


def _update_seconds(compared: ComparedRun) -> float | None:
    seconds = [
        total / updates
        for event in compared.run.events_of("progress")
        if (total := number(event.get("seconds"))) is not None and (updates := number(event.get("updates")))
    ]
    return median(seconds) if seconds else None


def _gpu_seconds(compared: ComparedRun) -> float:
    return sum(session.gpu_seconds for session in compared.sessions)


def _cost(compared: ComparedRun) -> str:
    """The cost of all GPUs that trained, at the price of one GPU for an hour with which the run was planned."""
    price = number(lookup(compared.run.plan, "plan", "cost", "price", "usd_per_hour"))
    if price is None or not _gpu_seconds(compared):
        return UNKNOWN
    return f"US$ {price * sum(s.gpu_seconds * s.processes for s in compared.sessions) / 3600:,.2f}"
