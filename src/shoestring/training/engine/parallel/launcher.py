"""A launcher of another program, such as torchrun, that has started this process as one of several."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from shoestring.base.errors import UsageError
from shoestring.base.processes import exit_with_parent

_ELASTIC_AGENT = "TORCHELASTIC_RUN_ID"
"""The variable that torch's elastic agent sets for the processes that it starts."""


@dataclass(frozen=True, kw_only=True)
class Launcher:
    """The place of this process among those that the launcher has started."""

    rank: int
    size: int
    problems: tuple[str, ...] = ()
    """What is missing in the environment to connect to the other processes."""

    @classmethod
    def find(cls, environment: Mapping[str, str] = os.environ) -> "Launcher | None":
        """Return the launcher that the environment describes; None without one, or if it starts one process."""
        size = environment.get("WORLD_SIZE", "")
        if not size.isdecimal() or int(size) <= 1:
            return None
        rank = environment.get("RANK", "")
        problems = [
            f"{name}={environment.get(name, '')}: expected a number less than WORLD_SIZE={size}"
            for name in ("RANK", "LOCAL_RANK")
            if not environment.get(name, "").isdecimal() or int(environment[name]) >= int(size)
        ]
        problems += [f"{name} is not set" for name in ("MASTER_ADDR", "MASTER_PORT") if not environment.get(name)]
        return cls(rank=int(rank) if rank.isdecimal() else 0, size=int(size), problems=tuple(problems))

    def require_complete(self) -> None:
        """Raise UsageError if this process cannot connect to the others."""
        if self.problems:
            raise UsageError(
                f"WORLD_SIZE={self.size}: a launcher has started {self.size} processes, but this one cannot find the "
                "others",
                problems=self.problems,
                hint="start them with torchrun, or unset WORLD_SIZE to train in one process",
            )

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


def end_with_agent() -> None:
    """Make this process end with torch's elastic agent, which torchrun runs, if that has started it.

    A killed agent leaves its processes behind, and they would keep the run's directory locked for the next start.
    """
    if _ELASTIC_AGENT in os.environ:
        exit_with_parent(os.getppid())
