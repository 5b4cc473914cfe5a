"""Where a rehearsed script ran out of memory, what held the memory, and what would help."""

from collections.abc import Iterator, Sequence

from shoestring.answers.document import Bar, Cell, Code, Column, Element, Items, Paragraph, Section, Span, Table
from shoestring.answers.rehearsal.verdict import place_text, when_text
from shoestring.base.units import bytes_text, count_text, plural
from shoestring.runs.rehearse.private import is_library
from shoestring.runs.rehearse.rehearsal import Frame, Holder, OutOfMemory, Rehearsal

_SHORT_OWN, _SHORT_LIBRARY = 4, 2
"""The frames of a short stack: the innermost of the script's own code, and of libraries."""
_SHORT_HOLDERS = 8
_WIDE = 90


def sections(rehearsal: Rehearsal, *, is_short: bool) -> Iterator[Element]:
    """Yield the error, what held the memory, and the proposals; a short answer has the most important of each."""
    error = rehearsal.out_of_memory
    if error:
        content: list[Element] = [Paragraph(_text(error)), _stack(error.stack)]
        if not is_short and len(error.stack) > 1:
            lines = [f"{frame.place} in {frame.function}" for frame in error.stack]
            whole = Code("\n".join(lines))
            content.append(Section(f"the whole stack, {plural(len(lines), 'frame')}", [whole], is_folded=True))
        yield Section("out of memory", content)
    if rehearsal.holders:
        yield Section("what held the memory", list(_holders(rehearsal.holders, is_short=is_short)))
    if rehearsal.proposals:
        yield Section("what would help", [Items(rehearsal.proposals)])
    if rehearsal.survived_out_of_memory:
        errors = plural(rehearsal.survived_out_of_memory, "out-of-memory error")
        yield Paragraph(f"The script has handled {errors} itself.", "note")


def _text(error: OutOfMemory) -> str:
    unused = error.reserved_bytes - error.allocated_bytes
    return (
        f"GPU {error.device} {when_text(error)}: {bytes_text(error.requested_bytes)} were asked for. Tensors had "
        f"{bytes_text(error.allocated_bytes)}, the allocator held {bytes_text(unused)} more in pieces, and "
        f"{bytes_text(error.free_bytes)} were free."
    )


def _stack(stack: Sequence[Frame]) -> Table:
    """Return the innermost frames of the script's own code, then those of libraries that asked for the memory."""
    own = [frame for frame in stack if not is_library(frame)]
    library = [frame for frame in stack if is_library(frame)]
    chosen = [*own[:_SHORT_OWN], *library[:_SHORT_LIBRARY]]
    rows: list[list[Cell]] = [
        [
            Span(frame.place.removeprefix("./"), "" if is_library(frame) else "strong"),
            frame.text or Span(f"in {frame.function}", "faint"),
        ]
        for frame in chosen
    ]
    return Table([Column(), Column()], rows)


def _holders(holders: Sequence[Holder], *, is_short: bool) -> Iterator[Element]:
    largest = max(holder.bytes for holder in holders) or 1
    chosen = holders[:_SHORT_HOLDERS] if is_short else holders
    columns = [
        Column("bytes", is_numeric=True, can_wrap=False),
        Column("", can_wrap=False, least_width=_WIDE),
        Column("what", can_wrap=False),
        Column("allocated by"),
        Column("blocks", is_numeric=True, can_wrap=False, least_width=_WIDE),
    ]
    rows: list[list[Cell]] = [
        [
            bytes_text(holder.bytes),
            Bar([holder.bytes / largest]),
            holder.kind,
            place_text(holder.frame),
            count_text(holder.count),
        ]
        for holder in chosen
    ]
    yield Table(columns, rows)
    if smaller := holders[len(chosen) :]:
        size = bytes_text(sum(holder.bytes for holder in smaller))
        yield Paragraph(f"and {size} by {plural(len(smaller), 'other line')}", "faint")
