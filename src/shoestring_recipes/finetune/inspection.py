"""Inspection of samples before training: how much is learned, how much is cut, and what would make training futile."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from shoestring.base.errors import DataError
from shoestring.base.units import count_text, plural
from shoestring_recipes.finetune.rendering import Renderer
from shoestring_recipes.finetune.rows import Row
from shoestring_recipes.finetune.samples import PairSample, Sample

_MOST_BINS = 12
_MOST_PLACES = 5
_MANY_CUT = 0.05


@dataclass(frozen=True, kw_only=True)
class Bin:
    """The rows whose samples, before they are cut, have `low` to `high` tokens; of pairs, the longer of both."""

    low: int
    high: int
    rows: int


@dataclass(frozen=True, kw_only=True)
class Inspection:
    """What was found in the samples of some rows. A pair counts as one row, and its tokens are those of both."""

    rows: int
    cut: int
    """Rows that are longer than `seq_len`."""
    cut_places: str
    """Where the first of them are in the data, and how many more there are."""
    tokens_lost: int
    """Tokens that were cut off."""
    tokens: int
    """Tokens that remain."""
    loss_tokens: int
    unlearnable: int
    """Rows in which nothing is learned, or nothing of one answer of a pair. They are left out of training."""
    stopping: int
    """Rows that teach the model to stop: a stop token is the last that is learned, or if they are cut, any that is."""
    longest: int
    """The largest number of tokens before cutting."""
    lengths: tuple[Bin, ...]
    refusals: tuple[str, ...]
    """Why training on these rows would be futile; empty if it is not."""
    notes: tuple[str, ...]
    """What else a person should know, in full sentences."""

    @property
    def cut_share(self) -> float:
        return self.cut / max(1, self.rows)

    @property
    def loss_share(self) -> float:
        return self.loss_tokens / max(1, self.tokens)


def inspect(samples: Sequence[Sample] | Sequence[PairSample], renderer: Renderer, rows: Sequence[Row]) -> Inspection:
    """Return what is found in `samples`, which `renderer` made of `rows`, in the same order."""
    parts = [_parts(sample) for sample in samples]
    full_lengths = [max(part.full_length for part in row) for row in parts]
    cut = [any(part.full_length > len(part) for part in row) for row in parts]
    learnable = [sample.is_learnable for sample in samples]
    ends = _Ends(renderer)
    stopping = [all(ends.teach(part) for part in row) for row in parts]
    flat = [part for row in parts for part in row]
    tokens = sum(map(len, flat))
    lost = sum(part.full_length for part in flat) - tokens
    refusals = [_no_loss(renderer, cut, learnable) or _never_stops(renderer, cut, learnable, stopping)]
    refusals.append(_applied_twice(renderer, rows))
    return Inspection(
        rows=len(parts),
        cut=sum(cut),
        cut_places=_places([row.place for row, is_cut in zip(rows, cut, strict=True) if is_cut]),
        tokens_lost=lost,
        tokens=tokens,
        loss_tokens=sum(int(part.loss_mask.sum()) for part in flat),
        unlearnable=len(parts) - sum(learnable),
        stopping=sum(stopping),
        longest=max(full_lengths, default=0),
        lengths=_bins(full_lengths),
        refusals=tuple(filter(None, refusals)),
        notes=tuple(_notes(renderer, cut, learnable, stopping, lost)),
    )


def require_learnable(inspection: Inspection) -> None:
    """Raise DataError with the refusals of an inspection, if there are any."""
    if inspection.refusals:
        raise DataError(
            "training on this data would be futile",
            problems=inspection.refusals,
            hint="`shoestring check finetune` shows a sample as the model receives it, with the learned tokens marked",
        )


def _parts(sample: Sample | PairSample) -> tuple[Sample, ...]:
    return (sample,) if isinstance(sample, Sample) else (sample.chosen, sample.rejected)


class _Ends:
    """Tells whether a sample teaches the model to stop.

    Its last learned token has to be a stop token, but for white space that some templates write after it; if the end
    was cut off, a stop token of an earlier answer is enough.
    """

    def __init__(self, renderer: Renderer) -> None:
        self._renderer = renderer
        self._spaces: dict[int, bool] = {}

    def teach(self, sample: Sample) -> bool:
        loss_mask: list[int] = sample.tokens[sample.loss_mask].tolist()
        last = next((token for token in reversed(loss_mask) if not self._is_space(token)), None)
        stops = self._renderer.stop_tokens
        return last in stops or (sample.full_length > len(sample) and not stops.isdisjoint(loss_mask))

    def _is_space(self, token: int) -> bool:
        if token not in self._spaces:
            self._spaces[token] = self._renderer.decode([token], skip_special=False).isspace()
        return self._spaces[token]


def _no_loss(renderer: Renderer, cut: Sequence[bool], learnable: Sequence[bool]) -> str | None:
    if any(learnable) or not learnable:
        return None
    if any(cut):
        return (
            f"nothing is left to learn: in every row the answers begin after the first seq_len={renderer.seq_len} "
            "tokens; set a larger seq_len"
        )
    return "nothing is learned: no row has an answer of the assistant that follows a prompt"


def _never_stops(
    renderer: Renderer, cut: Sequence[bool], learnable: Sequence[bool], stopping: Sequence[bool]
) -> str | None:
    if any(stopping) or not stopping:
        return None
    if all(was_cut for was_cut, learns in zip(cut, learnable, strict=True) if learns):
        return (
            f"the stop token is never learned: every row is longer than seq_len={renderer.seq_len}, so that the end of "
            "its last answer is cut off and the model would not learn to stop; set a larger seq_len"
        )
    stops = " or ".join(renderer.decode([token], skip_special=False) for token in sorted(renderer.stop_tokens))
    ending = f"no answer ends with {stops}" if stops else "neither the tokenizer nor the chat template has one"
    return (
        f"the stop token is never learned: {ending}, so the model would not learn to stop; use a template that writes "
        "it after each answer (within {% generation %}, if it marks answers), as one token of this tokenizer"
    )


def _applied_twice(renderer: Renderer, rows: Sequence[Row]) -> str | None:
    marked_rows = [(row.place, markup) for row in rows if (markup := renderer.misplaced_markup(row))]
    if not marked_rows:
        return None
    places = _places([f"{place} ({markup})" for place, markup in marked_rows])
    return (
        f"a chat template would be applied twice in {plural(len(marked_rows), 'row')}, whose messages contain its "
        f"markup: {places}; remove it from the messages, or give "
        "conversations that are rendered already as text"
    )


def _places(places: Sequence[str]) -> str:
    """Return the first places as text, with the number of the others."""
    unlisted = len(places) - _MOST_PLACES
    end = f", and {count_text(unlisted)} more" if unlisted > 0 else ""
    return f"{', '.join(places[:_MOST_PLACES])}{end}"


def _notes(
    renderer: Renderer, cut: Sequence[bool], learnable: Sequence[bool], stopping: Sequence[bool], lost: int
) -> Iterator[str]:
    rows = plural(len(cut), "row")
    if left_out := len(learnable) - sum(learnable):
        yield f"Training leaves out {count_text(left_out)} of {rows}, in which nothing is learned."
    if sum(cut) > _MANY_CUT * len(cut):
        yield (
            f"seq_len={renderer.seq_len} cuts {count_text(sum(cut))} of {rows} ({sum(cut) / len(cut):.0%}): "
            f"{plural(lost, 'token')} are lost, the end of the last answer of each row among them."
        )
    whole = [stops for learns, stops, was_cut in zip(learnable, stopping, cut, strict=True) if learns and not was_cut]
    if any(stopping) and not all(whole):
        yield f"The last answer of {count_text(whole.count(False))} of {rows} ends without a stop token."


def _bins(lengths: Sequence[int]) -> tuple[Bin, ...]:
    """Return a histogram of at most `_MOST_BINS` bins, whose width is a round number."""
    longest = max(lengths, default=0)
    widths = (step * 10**power for power in range(12) for step in (1, 2, 5))
    width = next(width for width in widths if width * _MOST_BINS >= longest)
    counts = Counter((length - 1) // width for length in lengths)
    return tuple(
        Bin(low=place * width + 1, high=(place + 1) * width, rows=counts[place])
        for place in range(min(counts, default=0), max(counts, default=-1) + 1)
    )
