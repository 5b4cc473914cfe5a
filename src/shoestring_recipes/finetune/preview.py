"""A sample as the model receives it, with the learned tokens marked, and the facts of an inspection before training."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from shoestring.base.units import count_text, plural
from shoestring_recipes.finetune.inspection import Bin, Inspection
from shoestring_recipes.finetune.rendering import Renderer
from shoestring_recipes.finetune.samples import PairSample, Sample, Samples
from shoestring_recipes.finetune.template_notes import has_marks

LEGEND = """\
A row as the model receives it: what is between ⟦ and ⟧ is learned, and ↵ is a line feed.
The remainder is prompt and markup. Answers that are not learned are between ⟪ and ⟫."""
_DESCRIBED_TOKENS = 60
_BAR_WIDTH = 40


@dataclass(frozen=True, kw_only=True)
class Segment:
    """Consecutive tokens of which all or none are learned."""

    text: str
    """Their text with special tokens, and with `↵` before each line feed."""
    loss_mask: bool
    reason: str = ""
    """Why an answer is not learned; empty for what is learned, and for prompts and markup."""


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


def preview(samples: Samples, inspection: Inspection, renderer: Renderer, notes: Sequence[str]) -> Preview:
    """Return what to show of some samples, of which there is at least one.

    That is the first that is not cut, the first of these with marks that exclude answers, and all facts.
    """
    indices = range(len(samples))
    whole = [index for index in indices if not any(map(_is_cut, _parts(samples[index]).values()))] or [0]
    marked = next((index for index in whole if has_marks(samples.rows[index])), whole[0])
    return Preview(
        samples=tuple(
            (
                f"{samples.rows[index].place}{name}, {plural(len(part), 'token')}",
                tuple(_segments(part, reasons, renderer)),
            )
            for index in dict.fromkeys((whole[0], marked))
            for (name, part), reasons in zip(
                _parts(samples[index]).items(), renderer.reasons(samples.rows[index]), strict=True
            )
        ),
        facts=tuple(_facts(inspection, renderer)),
        lengths=inspection.lengths,
        notes=tuple(notes),
        refusals=inspection.refusals,
    )


def preview_text(samples: Samples, inspection: Inspection | None, renderer: Renderer, notes: Sequence[str] = ()) -> str:
    """Return a preview as plain text, in which learned tokens are marked without color.

    It is empty if there are no samples, or stand-ins without an inspection.
    """
    if inspection is None or not len(samples):
        return ""
    contents = preview(samples, inspection, renderer, notes)
    lines = [LEGEND, ""]
    for title, segments in contents.samples:
        marked = "".join(map(_marked, segments))
        reasons = dict.fromkeys(segment.reason for segment in segments if segment.reason)
        lines += [f"{title}:", *(f"  {line}" for line in marked.rstrip("\n").split("\n"))]
        lines += [*(f"not learned: {reason}" for reason in reasons), ""]
    lines += [*(f"note: {note}" for note in contents.notes), *([""] if contents.notes else [])]
    width = max(len(name) for name, _ in contents.facts)
    lines += [f"{name:<{width}}  {value}" for name, value in contents.facts]
    lines += ["", "tokens of a row, before cutting", *_bars(contents.lengths)]
    lines += [f"refused: {refusal}" for refusal in contents.refusals]
    return "\n".join(lines)


def describe(samples: Samples, index: int, renderer: Renderer) -> dict[str, Any]:
    """Return the place of a row, its tokens, the learned ones among them, and the beginning of its text, as JSON."""
    parts = list(_parts(samples[index]).values())
    return {
        "place": samples.rows[index].place,
        "tokens": sum(map(len, parts)),
        "learned_tokens": sum(int(part.loss_mask.sum()) for part in parts),
        "text": renderer.decode(parts[0].tokens[:_DESCRIBED_TOKENS], skip_special=False),
    }


def _parts(sample: Sample | PairSample) -> dict[str, Sample]:
    """Return the samples of a row, with what to add to its place."""
    if isinstance(sample, Sample):
        return {"": sample}
    return {", chosen": sample.chosen, ", rejected": sample.rejected}


def _is_cut(sample: Sample) -> bool:
    return sample.full_length > len(sample)


def _segments(sample: Sample, reasons: Sequence[tuple[int, int, str]], renderer: Renderer) -> Iterator[Segment]:
    def kind(place: int) -> tuple[bool, str]:
        if sample.loss_mask[place]:
            return True, ""
        return False, next((reason for first, end, reason in reasons if first <= place < end), "")

    # Whole runs of tokens, because a character may be divided into several tokens.
    for (loss_mask, reason), places in groupby(range(len(sample)), key=kind):
        text = renderer.decode(sample.tokens[list(places)], skip_special=False)
        yield Segment(text=text.replace("\n", "↵\n"), loss_mask=loss_mask, reason=reason)


def _marked(segment: Segment) -> str:
    if segment.loss_mask:
        return f"⟦{segment.text}⟧"
    return f"⟪{segment.text}⟫" if segment.reason else segment.text


def _facts(inspection: Inspection, renderer: Renderer) -> Iterator[tuple[str, str]]:
    yield "rows", count_text(inspection.rows)
    yield "tokens", f"{count_text(inspection.tokens)}, {count_text(inspection.longest)} in the longest row"
    yield "learned tokens", f"{count_text(inspection.loss_tokens)} ({inspection.loss_share:.0%})"
    yield "rows that teach to stop", count_text(inspection.stopping)
    lost = f", {plural(inspection.tokens_lost, 'token')} lost: {inspection.cut_places}" if inspection.cut else ""
    yield f"rows cut at seq_len={renderer.seq_len}", f"{count_text(inspection.cut)} ({inspection.cut_share:.0%}){lost}"
    if inspection.unlearnable:
        yield "rows in which nothing is learned", count_text(inspection.unlearnable)


def _bars(lengths: tuple[Bin, ...]) -> Iterator[str]:
    largest_count = max((part.rows for part in lengths), default=1) or 1
    ranges = [f"{count_text(part.low)} to {count_text(part.high)}" for part in lengths]
    for name, part in zip(ranges, lengths, strict=True):
        # A bin with rows has a bar, however short.
        bar = "█" * (part.rows and max(1, round(part.rows / largest_count * _BAR_WIDTH)))
        yield f"  {name:>{max(map(len, ranges))}}  {bar:<{_BAR_WIDTH}}  {count_text(part.rows)}".rstrip()
