"""Charts of our own: drawn from a real table, so that type, data and answer are known exactly.

The table are monthly closing prices of eight companies and two indices, 1990 to 2020, inside matplotlib's sample data
(`Stocks.csv`, from Yahoo Finance). No chart of them is anybody else's: they are to learn and test with, not EvoChart.
"""

from __future__ import annotations

import csv
import functools
import io
import random
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from PIL.Image import Image

TYPES = ("bar", "line", "pie", "scatterplot", "area")
NAMES = {"^GSPC": "S&P 500", "^IXIC": "NASDAQ"}


@dataclass(frozen=True, kw_only=True)
class Drawn:
    """A chart to be, its question and all that is known of them."""

    chart_type: str
    title: str
    columns: tuple[str, str]
    rows: tuple[tuple[str, float], ...]
    query: str
    label: str
    reasoning: str

    def known(self) -> dict[str, Any]:
        """What rewards hold a completion against."""
        return {
            "label": self.label,
            "chart_type": self.chart_type,
            "table": {"columns": list(self.columns), "rows": [list(row) for row in self.rows]},
            "reasoning": self.reasoning,
        }


def drawn(number: int) -> Drawn:
    """The chart of this number: a company's yearly means over some years, and a question about them."""
    chance = random.Random(number)
    prices = yearly()
    name = chance.choice(sorted(prices))
    years = sorted(prices[name])
    count = chance.randint(4, 6)
    first = chance.randrange(len(years) - count + 1)
    rows = tuple((str(year), round(prices[name][year], 1)) for year in years[first : first + count])
    query, label, reasoning = chance.choice(QUESTIONS)(rows, chance)
    return Drawn(
        chart_type=chance.choice(TYPES),
        title=f"{NAMES.get(name, name)}: mean price of a year",
        columns=("year", "price"),
        rows=rows,
        query=query,
        label=label,
        reasoning=reasoning,
    )


def image(chart: Drawn, size: tuple[int, int]) -> Image:
    """The chart as an RGB image of (width, height) pixels; the same pixels each time under one matplotlib."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from PIL import Image as Pillow

    dots = 100
    figure = Figure(figsize=(size[0] / dots, size[1] / dots), dpi=dots, layout="tight")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    names, values = [row[0] for row in chart.rows], [row[1] for row in chart.rows]
    if chart.chart_type == "bar":
        axes.bar(names, values)
    elif chart.chart_type == "line":
        axes.plot(names, values, marker="o")
    elif chart.chart_type == "pie":
        axes.pie(values, labels=[f"{name}: {value}" for name, value in chart.rows])
    elif chart.chart_type == "scatterplot":
        axes.scatter(names, values)
    else:
        axes.fill_between(names, values)
    axes.set_title(chart.title)
    content = io.BytesIO()
    figure.savefig(content, format="png", metadata={"Software": None})
    return Pillow.open(content).convert("RGB").resize(size)


@functools.cache
def yearly() -> dict[str, dict[int, float]]:
    """Mean closing price by company and year, of years with a price in each month; companies with six of them."""
    from matplotlib import cbook

    months: dict[str, dict[int, list[float]]] = {}
    with Path(cbook.get_sample_data("Stocks.csv", asfileobj=False)).open(encoding="utf-8") as file:
        for row in csv.DictReader(line for line in file if not line.startswith("#")):
            for name, price in row.items():
                if name != "Date" and price:
                    months.setdefault(name, {}).setdefault(int(row["Date"][:4]), []).append(float(price))
    means = {
        name: {year: sum(prices) / len(prices) for year, prices in years.items() if len(prices) >= 12}
        for name, years in months.items()
    }
    return {name: years for name, years in means.items() if len(years) >= 6}


def _highest(rows: tuple[tuple[str, float], ...], _: random.Random) -> tuple[str, str, str]:
    year, price = max(rows, key=lambda row: row[1])
    return "In which year was the price highest?", year, f"The highest price is {price}.\nIt is that of {year}."


def _lowest(rows: tuple[tuple[str, float], ...], _: random.Random) -> tuple[str, str, str]:
    year, price = min(rows, key=lambda row: row[1])
    return "In which year was the price lowest?", year, f"The lowest price is {price}.\nIt is that of {year}."


def _value(rows: tuple[tuple[str, float], ...], chance: random.Random) -> tuple[str, str, str]:
    year, price = chance.choice(rows)
    return f"What was the price in {year}?", str(price), f"I look for {year}.\nIts price is {price}."


def _change(rows: tuple[tuple[str, float], ...], _: random.Random) -> tuple[str, str, str]:
    (first, before), *_between, (last, after) = rows
    change = round(after - before, 1)
    return (
        f"By how much did the price change from {first} to {last}?",
        str(change),
        f"In {first} it is {before}.\nIn {last} it is {after}.\nThe difference is {change}.",
    )


QUESTIONS = (_highest, _lowest, _value, _change)
