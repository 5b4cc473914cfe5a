"""A launcher of another program, such as torchrun, that has started this process as one of several."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from shoestring.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class Launcher:
    """The place of this process among those that the launcher has started."""

    rank: int
    size: int

    @classmethod
    def find(cls, environment: Mapping[str, str] = os.environ) -> "Launcher | None":
        """Return the launcher that the environment describes; None without one, or if it starts one process.

        Raises UsageError if the environment is incomplete.
        """
        size = environment.get("WORLD_SIZE", "1")
        if size.strip() in ("", "1"):
            return None
        names = ("RANK", "LOCAL_RANK", "WORLD_SIZE")
        numbers = {name: environment.get(name, "") for name in names}
        problems = [f"{name}={value}: expected a number" for name, value in numbers.items() if not value.isdecimal()]
        problems += [f"{name} is not set" for name in ("MASTER_ADDR", "MASTER_PORT") if not environment.get(name)]
        if not problems and int(numbers["RANK"]) >= int(size):
            problems.append(f"RANK={numbers['RANK']}: must be less than WORLD_SIZE={size}")
        if problems:
            raise UsageError(
                f"WORLD_SIZE={size} says that a launcher has started {size} processes, but not as which one",
                problems=problems,
                hint="start them with torchrun, or unset WORLD_SIZE to train in one process",
            )
        return cls(rank=int(numbers["RANK"]), size=int(size))

    def with_gpus(self, values: Mapping[str, object]) -> dict[str, Any]:
        """Return the `values` of a run with the number of processes.

        Raises UsageError if they set another one.
        """
        if str(values.get("gpus", self.size)) != str(self.size):
            raise UsageError(
                f"gpus={values['gpus']}, but the launcher has started {self.size} processes (WORLD_SIZE)",
                hint=f"leave out gpus, or start {values['gpus']} processes",
            )
        return {**values, "gpus": self.size}


def is_first_process() -> bool:
    """Return whether this process, of those that a launcher may have started, prints and writes for all of them."""
    launcher = Launcher.find()
    return launcher is None or launcher.rank == 0
