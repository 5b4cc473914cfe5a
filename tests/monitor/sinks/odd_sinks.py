"""The process of a sink, with sinks that raise, hang or fill the disk."""

import errno
import sys
import time
from pathlib import Path

from shoestring.monitor.sinks import __main__, names
from shoestring.monitor.sinks.points import Point


class Odd:
    def __init__(self, folder: Path) -> None:
        self._file = folder / "points.txt"

    def add(self, point: Point) -> None:
        with self._file.open("a") as file:
            file.write(f"{point.update}\n")

    def flush(self) -> None: ...

    def close(self) -> None: ...


class Raising(Odd):
    def add(self, point: Point) -> None:
        super().add(point)
        raise RuntimeError("no such table")


class Hanging(Odd):
    def add(self, point: Point) -> None:
        super().add(point)
        time.sleep(1000)


class FillingTheDisk(Odd):
    def flush(self) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")


class Name(names.SinkName):
    def open(self, folder: Path) -> Odd:
        return globals()[self.module](folder)


if __name__ == "__main__":
    names.SINKS |= {name: Name(module=name) for name in ("Odd", "Raising", "Hanging", "FillingTheDisk")}
    __main__.main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
