"""The lengths of a recipe's samples."""

from pathlib import Path

from shoestring.answers.document import Column, Document, Paragraph, Span, Table
from shoestring.base import shell
from shoestring.recipe.absent_data import Lengths

_SHARES = (0.5, 0.9, 0.99)


def document(recipe: str, file: Path, lengths: Lengths) -> Document:
    """Return the distribution of the lengths, and how to plan with the file."""
    quantiles = lengths.quantiles()
    rows = []
    for share in _SHARES:
        length = quantiles[round(share * (len(quantiles) - 1))]
        rows.append((f"{share:.0%} have at most", f"{length:,.0f} {lengths.unit}"))
    rows.append(("the longest has", f"{max(lengths.counts):,} {lengths.unit}"))
    title = f"the lengths of {lengths.total:,} training samples are in {file}"
    return Document(
        title=title,
        sentences=[Span(title, "strong")],
        content=[
            Table([Column(), Column()], rows),
            Paragraph(f"plan them elsewhere: shoestring plan {recipe} --set lengths={shell.quote(file)}"),
        ],
    )
