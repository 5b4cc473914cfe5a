"""The lengths of a recipe's samples in a terminal."""

from pathlib import Path

from rich.console import Group, RenderableType
from rich.text import Text

from shoestring.answers.terminal.elements import grid
from shoestring.base.streams import one_line
from shoestring.recipe.absent_data import Lengths

_SHARES = (0.5, 0.9, 0.99)


def screen(recipe: str, file: Path, lengths: Lengths) -> RenderableType:
    """Show the distribution of the lengths, and how to plan with the file."""
    rows = grid()
    quantiles = lengths.quantiles()
    for share in _SHARES:
        length = quantiles[round(share * (len(quantiles) - 1))]
        rows.add_row(f"{share:.0%} have at most", f"{length:,.0f} {lengths.unit}")
    rows.add_row("the longest has", f"{max(lengths.counts):,} {lengths.unit}")
    name = one_line(str(file))
    return Group(
        Text(f"the lengths of {lengths.total:,} training samples are in {name}", style="bold"),
        rows,
        Text(f"plan them elsewhere: shoestring plan {one_line(recipe)} --set lengths={name}"),
    )
