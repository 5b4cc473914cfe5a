"""Notes on a plan for data that are not on this machine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from shoestring.recipe.absent_data import DEFAULT_ROWS
from shoestring.recipe.options import LoadedRecipe


def absent_data_notes(loaded: LoadedRecipe, samples: Mapping[str, int]) -> Iterator[str]:
    """Yield what the options of absent data stand for, what a row is, and what is not known of the data."""
    absent, lengths, parts = loaded.absent_data, loaded.lengths, loaded.parts
    assert absent
    counts = ", ".join(f"{name} {count:,}" for name, count in samples.items())
    rows = absent.rows if absent.rows is not None or lengths else DEFAULT_ROWS
    subject = "lengths" if rows is None else f"rows={rows:,} ({parts.data.row} each)"
    yield f"the data are not here: {subject} stand for these samples: {counts}"
    if parts.data.capacity is None:
        return
    if lengths and (longer := sum(count for length, count in lengths.counts.items() if length > parts.data.capacity)):
        yield (
            f"{longer:,} of {lengths.total:,} samples have more than {parts.data.capacity:g} {parts.data.length_unit}, "
            "and count with so many"
        )
    if lengths is None and absent.row_tokens is None:
        yield (
            f"the lengths of the samples are unknown: each is counted with {parts.data.capacity:g} "
            f"{parts.data.length_unit}, the most; row_tokens=N or lengths=FILE (shoestring check RECIPE "
            "--lengths FILE, where the data are) plans their own"
        )
    elif lengths and lengths.tokenizer and parts.data.length_source:
        source = parts.data.length_source()
        if source != lengths.tokenizer:
            yield (
                f"the lengths were counted with {lengths.tokenizer}, and this plan is for {source}: they may differ by "
                "a third; write the file again with this model"
            )
