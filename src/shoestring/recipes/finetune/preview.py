"""A sample as the model receives it, with the learnt tokens marked, and the facts of an inspection: before training."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby

from shoestring.recipes.finetune.inspection import Bin, Inspection
from shoestring.recipes.finetune.rendering import Renderer
from shoestring.recipes.finetune.samples import PairSample, Sample
from shoestring.units import count_text, plural

LEGEND = "what is between ⟦ and ⟧ is learnt; ↵ is a line feed"
_BAR_WIDTH = 40


@dataclass(frozen=True, kw_only=True)
class Segment:
    """Consecutive tokens of which all or none are learnt."""

    text: str
    """Their text with special tokens, and with `↵` before each line feed."""
    learnt: bool


@dataclass(frozen=True, kw_only=True)
class Preview:
    """What is shown before training."""

    samples: tuple[tuple[str, tuple[Segment, ...]], ...]
    """A title and a sample; of a pair, both samples."""
    facts: tuple[tuple[str, str], ...]
    """Names and values."""
    lengths: tuple[Bin, ...]
    notes: tuple[str, ...]
    refusals: tuple[str, ...]


def preview_sample(sample: Sample | PairSample, renderer: Renderer, inspection: Inspection) -> Preview:
    """Return what to show of a sample and of the inspection of all samples."""
    if isinstance(sample, Sample):
        samples = [("sample", sample)]
    else:
        samples = [("chosen", sample.chosen), ("rejected", sample.rejected)]
    return Preview(
        samples=tuple(
            (f"{title}, {plural(len(part), 'token')}", tuple(_segments(part, renderer))) for title, part in samples
        ),
        facts=tuple(_facts(inspection, renderer)),
        lengths=inspection.lengths,
        notes=inspection.notes,
        refusals=inspection.refusals,
    )


def preview_text(preview: Preview) -> str:
    """Return a preview as plain text, in which learnt tokens are marked without colour."""
    lines = []
    for title, segments in preview.samples:
        marked = "".join(f"⟦{segment.text}⟧" if segment.learnt else segment.text for segment in segments)
        lines += [f"{title} ({LEGEND}):", *(f"  {line}" for line in marked.rstrip("\n").split("\n")), ""]
    width = max(len(name) for name, _ in preview.facts)
    lines += [f"{name:<{width}}  {value}" for name, value in preview.facts]
    lines += ["", "tokens of a row, before cutting", *_bars(preview.lengths)]
    lines += [f"note: {note}" for note in preview.notes]
    lines += [f"refused: {refusal}" for refusal in preview.refusals]
    return "\n".join(lines)


def _segments(sample: Sample, renderer: Renderer) -> Iterator[Segment]:
    # Whole runs of tokens, because a character may be divided into several tokens.
    for learnt, places in groupby(range(len(sample)), key=lambda place: bool(sample.learnt[place])):
        text = renderer.decode(sample.tokens[list(places)], skip_special=False)
        yield Segment(text=text.replace("\n", "↵\n"), learnt=learnt)


def _facts(inspection: Inspection, renderer: Renderer) -> Iterator[tuple[str, str]]:
    yield "rows", count_text(inspection.rows)
    yield "tokens", f"{count_text(inspection.tokens)}, {count_text(inspection.longest)} in the longest row"
    yield "learnt tokens", f"{count_text(inspection.learnt_tokens)} ({inspection.learnt_share:.0%})"
    yield "rows that teach to stop", count_text(inspection.stopping)
    lost = f", {plural(inspection.tokens_lost, 'token')} lost" if inspection.tokens_lost else ""
    yield f"rows cut at seq_len={renderer.seq_len}", f"{count_text(inspection.cut)} ({inspection.cut_share:.0%}){lost}"
    if inspection.unlearnable:
        yield "rows in which nothing is learnt", count_text(inspection.unlearnable)


def _bars(lengths: tuple[Bin, ...]) -> Iterator[str]:
    most = max((part.rows for part in lengths), default=1) or 1
    ranges = [f"{count_text(part.low)} to {count_text(part.high)}" for part in lengths]
    for name, part in zip(ranges, lengths, strict=True):
        # A bin with rows has a bar, however short.
        bar = "█" * (part.rows and max(1, round(part.rows / most * _BAR_WIDTH)))
        yield f"  {name:>{max(map(len, ranges))}}  {bar:<{_BAR_WIDTH}}  {count_text(part.rows)}".rstrip()
