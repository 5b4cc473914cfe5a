"""A rehearsal as a document: the verdict in one sentence, and what it rests on."""

from shoestring.answers.document import GAP, Command, Document, Element, Fact, Items, Paragraph
from shoestring.answers.rehearsal import limits, memory, out_of_memory
from shoestring.answers.rehearsal.verdict import name, plain, sentence, status
from shoestring.base.units import count_text, plural, seconds_text
from shoestring.runs.rehearse.rehearsal import Rehearsal

_SUMMARY_LINES = 4
"""Assumptions and notes that the summary shows, of each as much as fits on a line."""
_VALUES = {
    "auto": "values of small tensors are computed",
    "all": "all values are computed",
    "none": "no values are computed",
}


def printed(rehearsal: Rehearsal) -> Document:
    """Return the summary that `print` shows."""
    return summary(rehearsal, full="")


def summary(rehearsal: Rehearsal, full: str = "--full") -> Document:
    """Return the most important of the answer; `full` is the way to show everything, for the last line."""
    last_line = f"{full} shows the whole stack, all lines that held memory, all assumptions and notes." if full else ""
    return _document(rehearsal, is_short=True, ending=[Paragraph(last_line, "faint")] if last_line else [])


def document(rehearsal: Rehearsal) -> Document:
    """Return all of the answer."""
    command = Command(rehearsal.command, "To rehearse it again")
    ending: list[Element] = [GAP, command] if rehearsal.command else []
    return _document(rehearsal, is_short=False, ending=ending)


def not_genuine(rehearsal: Rehearsal) -> str:
    """Return what a rehearsal is not."""
    losses = "" if rehearsal.values == "all" else ", and losses and metrics mean nothing"
    return (
        "This is a prediction by simulation: PyTorch's own allocator has decided about memory, but no kernel has run, "
        f"times are computed from the operators and the rates of the GPU{losses}."
    )


def _document(rehearsal: Rehearsal, *, is_short: bool, ending: list[Element]) -> Document:
    content: list[Element] = [
        Fact("rehearsed", [Paragraph(_rehearsed(rehearsal))]),
        *memory.sections(rehearsal),
        *out_of_memory.sections(rehearsal, is_short=is_short),
        GAP,
        *limits.facts(rehearsal),
    ]
    for title, texts in (("assumed", rehearsal.assumed), ("notes", rehearsal.notes)):
        if texts:
            items = Items(texts[:_SUMMARY_LINES], is_clipped=True) if is_short else Items(texts)
            content.append(Fact(title, [items]))
    content += [GAP, Paragraph(not_genuine(rehearsal), "faint"), *ending]
    return Document(
        title=f"{name(rehearsal)} on {rehearsal.target.name}",
        status=status(rehearsal),
        subtitle=plain(sentence(rehearsal)),
        sentences=[sentence(rehearsal)],
        content=content,
    )


def _rehearsed(rehearsal: Rehearsal) -> str:
    """Return how much was rehearsed, and with what."""
    of_all = f" of {count_text(rehearsal.total_updates)}" if rehearsal.total_updates else ""
    updates = f"{count_text(rehearsal.updates)}{of_all} updates" if of_all else plural(rehearsal.updates, "update")
    versions = f"PyTorch {rehearsal.torch}, Python {rehearsal.python}"
    if rehearsal.stack:
        versions += f", with the versions of {rehearsal.stack}"
    return (
        f"{updates} in {seconds_text(rehearsal.seconds)} · {versions} · "
        f"{_VALUES.get(rehearsal.values, rehearsal.values)}"
    )
