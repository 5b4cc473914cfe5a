"""What is trained in both ways: a recipe, its options, and how much."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Case:
    """One training. Its `options` are for both ways, `guide` for the guide's and `settings` for ours."""

    name: str
    recipe: str
    options: Mapping[str, Any]
    guide: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Usually none: the plan chooses them."""
    devices: tuple[str, ...] = ("cpu", "cuda")
    goal: float
    """How many times as fast ours should be."""


def cases(law_ai: Path | None) -> dict[str, Case]:
    """By name, with real judgments where their directory is given."""
    judgments: dict[str, Any] = {} if law_ai is None else {"data": law_ai, "roles": "law-ai"}
    every = [
        # How BERT is learnt from random weights in so few samples says little: size=tiny shows that, full what it costs
        Case(
            name="legal, tiny",
            recipe="legal",
            options={**judgments, "size": "tiny", "subset": 3200, "epochs": 3},
            guide={"length": 512},
            goal=5,
        ),
        Case(
            name="legal, full",
            recipe="legal",
            options={**judgments, "size": "full", "subset": 80, "epochs": 1},
            guide={"length": 512},
            goal=5,
        ),
    ]
    return {case.name: case for case in every}
