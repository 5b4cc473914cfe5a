"""The names of the sinks, for `--log NAME`. Importing this module imports none of them."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from shoestring.base.errors import UsageError, nearest
from shoestring.base.packages import requirements
from shoestring.training.monitor.sinks import Sink


@dataclass(frozen=True, kw_only=True)
class SinkName:
    """Where a sink is, and what it needs."""

    module: str
    """The module with the function `open_sink(folder)`."""
    needs: str = ""
    """The package that has to be installed, which is also the name of the extra."""

    def open(self, folder: Path) -> Sink:
        """Return the sink, which replaces what an earlier one has written to the folder."""
        open_sink: Callable[[Path], Sink] = importlib.import_module(self.module).open_sink
        return open_sink(folder)


SINKS = {
    "csv": SinkName(module="shoestring.training.monitor.sinks.csv_file"),
    "tensorboard": SinkName(module="shoestring.training.monitor.sinks.tensorboard", needs="tensorboard"),
}


def of_earlier_sessions(folder: Path) -> list[str]:
    """Return the names of the sinks that have been written below `folder` and can be used here."""
    return [name for name in SINKS if (folder / name).is_dir() and not _is_missing(name)]


def require(names: Iterable[str]) -> None:
    """Raise UsageError for a name that no sink has, and for a sink whose package cannot be used."""
    for name in names:
        if name not in SINKS:
            raise UsageError(f"--log {name}: there is no such log", hint=nearest(name, SINKS))
        if needs := SINKS[name].needs:
            requirements.require(needs, needs)


def _is_missing(name: str) -> bool:
    needs = SINKS[name].needs
    return bool(needs) and importlib.util.find_spec(needs) is None
