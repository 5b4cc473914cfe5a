"""The steps of a recipe's work without gradients, as its `rollout`, `inference` and `evaluation_work` yield them."""

from __future__ import annotations

from typing import Any, NamedTuple


class Step(NamedTuple):
    """A step of generating texts that stands for several."""

    state: Any
    """What is saved for the next step: tensors in tuples, lists and dicts."""
    times: float = 1.0
    """How many steps take as long as this one; 0 for a step that is simulated for its memory alone."""
