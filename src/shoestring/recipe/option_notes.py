"""What an option says of itself to the rest of Shoestring, which knows no recipe's options by name.

It stands beside the option's help:

    seq_len: Annotated[int, "tokens of a sample", Cheaper("shorter sequences")] = 512
    sees: Annotated[Literal["near", "all"], "what a token attends to", Cheaper("a window", values=["near"])] = "all"
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

_PARTS = 8


@dataclass(frozen=True)
class Cheaper:
    """A plan may propose smaller numbers for the option, which are eighths of its value, or the `values`."""

    change: str
    """What they change, as the title of the proposal: `shorter sequences`."""
    values: Sequence[Any] = ()
    """The values to propose, the cheapest first, of an option that is not a number."""
    changes_learning: bool = True
    """Whether the training result changes beyond rounding. Options that do not change it are proposed first."""
    order: int = 0
    """A plan may not have the time to trace all options: those with a smaller number are proposed first."""
    unset: str = ""
    """The option whose value counts while this one is none. Without it, nothing is proposed for none."""

    def than(self, value: Any) -> list[Any]:
        """Return the values that are cheaper than `value`, the cheapest first."""
        if self.values:
            values = list(self.values)
            return values[: values.index(value)] if value in values else values
        if not isinstance(value, int) or value <= 1:
            return []
        return sorted({max(1, value * share // _PARTS) for share in range(1, _PARTS)} - {value})


@dataclass(frozen=True)
class SelectsNewInputs:
    """With this value of the option, a prediction without other data is one for new inputs."""

    value: str
