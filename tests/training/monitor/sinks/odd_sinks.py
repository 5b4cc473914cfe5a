"""The process of a sink, with sinks that raise, hang or fill the disk."""

import errno
import shutil
import sys
import time
from pathlib import Path

from shoestring.training.monitor.sinks import __main__, names
from shoestring.training.monitor.sinks.points import Point


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
    """Writes until the disk is full; where it is not a small one, it pretends to."""

    def flush(self) -> None:
        if shutil.disk_usage(self._file.parent).total > 2**30:
            raise OSError(errno.ENOSPC, "No space left on device")
        with self._file.with_name("filler").open("wb", buffering=0) as file:
            while True:
                file.write(bytes(65536))


class Name(names.SinkName):
    def open(self, folder: Path) -> Odd:
        return globals()[self.module](folder)


if __name__ == "__main__":
    names.SINKS |= {name: Name(module=name) for name in ("Odd", "Raising", "Hanging", "FillingTheDisk")}
    __main__.main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
