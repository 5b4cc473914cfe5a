"""Synthetic charts, drawn from a real table, so that chart type, data and answer are known exactly.

The table has the monthly closing prices of eight companies and two indices, 1990 to 2020, from matplotlib's sample data
(`Stocks.csv`, from Yahoo Finance). The charts are for learning and testing; they are not from EvoChart.
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
class SyntheticChart:
    """The content of a chart, a question about it, and all annotations."""

    chart_type: str
    title: str
    columns: tuple[str, str]
    rows: tuple[tuple[str, float], ...]
    query: str
    label: str
    reasoning: str

    def annotations(self) -> dict[str, Any]:
        """Return the annotations that rewards compare a completion with."""
        return {
            "label": self.label,
            "chart_type": self.chart_type,
            "table": {"columns": list(self.columns), "rows": [list(row) for row in self.rows]},
            "reasoning": self.reasoning,
        }


def make_chart(number: int) -> SyntheticChart:
    """Return the chart with this number: a company's yearly mean prices over some years, and a question about them."""
    rng = random.Random(number)
    prices = load_yearly_means()
    name = rng.choice(sorted(prices))
    years = sorted(prices[name])
    count = rng.randint(4, 6)
    first = rng.randrange(len(years) - count + 1)
    rows = tuple((str(year), round(prices[name][year], 1)) for year in years[first : first + count])
    query, label, reasoning = rng.choice(QUESTIONS)(rows, rng)
    return SyntheticChart(
        chart_type=rng.choice(TYPES),
        title=f"{NAMES.get(name, name)}: mean price of a year",
        columns=("year", "price"),
        rows=rows,
        query=query,
        label=label,
        reasoning=reasoning,
    )


def draw_chart(chart: SyntheticChart, size: tuple[int, int]) -> Image:
    """Draw the chart as an RGB image of (width, height) pixels; one matplotlib version gives the same pixels."""
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
def load_yearly_means() -> dict[str, dict[int, float]]:
    """Return the mean closing price by company and year.

    Years without a price in each month are left out, and so are companies with fewer than six years.
    """
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


def _ask_highest(rows: tuple[tuple[str, float], ...], _: random.Random) -> tuple[str, str, str]:
    year, price = max(rows, key=lambda row: row[1])
    return "In which year was the price highest?", year, f"The highest price is {price}.\nIt is that of {year}."


def _ask_lowest(rows: tuple[tuple[str, float], ...], _: random.Random) -> tuple[str, str, str]:
    year, price = min(rows, key=lambda row: row[1])
    return "In which year was the price lowest?", year, f"The lowest price is {price}.\nIt is that of {year}."


def _ask_value(rows: tuple[tuple[str, float], ...], rng: random.Random) -> tuple[str, str, str]:
    year, price = rng.choice(rows)
    return f"What was the price in {year}?", str(price), f"I look for {year}.\nIts price is {price}."


def _ask_change(rows: tuple[tuple[str, float], ...], _: random.Random) -> tuple[str, str, str]:
    (first, start), *_between, (last, end) = rows
    change = round(end - start, 1)
    return (
        f"By how much did the price change from {first} to {last}?",
        str(change),
        f"In {first} it is {start}.\nIn {last} it is {end}.\nThe difference is {change}.",
    )


QUESTIONS = (_ask_highest, _ask_lowest, _ask_value, _ask_change)
"""Functions from a chart's rows to a question, its answer and the reasoning."""
