"""`--log csv`: one row for each number, `metrics.csv` with the columns update, time (unix seconds), name and value."""

from __future__ import annotations

import csv
from pathlib import Path

from shoestring.training.monitor.sinks.points import Point


class CsvFile:
    """A `Sink`."""

    def __init__(self, path: Path) -> None:
        path.unlink(missing_ok=True)  # it may be a link
        self._file = path.open("x", newline="", encoding="utf-8")
        self._rows = csv.writer(self._file)
        self._rows.writerow(["update", "time", "name", "value"])

    def add(self, point: Point) -> None:
        self._rows.writerows([point.update, f"{point.time:.3f}", name, value] for name, value in point.values.items())

    def flush(self) -> None:
        self._file.flush()

    def close(self) -> None:
        self._file.close()


def open_sink(folder: Path) -> CsvFile:
    return CsvFile(folder / "metrics.csv")
