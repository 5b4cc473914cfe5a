"""What is trained in both ways: a recipe, its options, and how much."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Case:
    """One training, in both ways with the same `options`."""

    name: str
    """Begins with the recipe's."""
    options: Mapping[str, Any]
    half_on_cpu: bool = False
    """Whether ours is trained in bf16 as well where a processor computes in it, as a GPU's plan chooses fp16."""
    devices: tuple[str, ...] = ("cpu", "cuda")
    held_out: int = 256
    """Validation samples at most that the model is judged by after training."""
    drawn: bool = False
    """Whether samples are drawn when they are first asked for, which the guide has as files."""

    @property
    def recipe(self) -> str:
        return self.name.partition(",")[0]


def cases(law_ai: Path | None) -> dict[str, Case]:
    """By name, with real judgments where their directory is given."""
    judgments: dict[str, Any] = {} if law_ai is None else {"data": law_ai, "roles": "law-ai"}
    every = [
        # How BERT is learnt from random weights in so few samples says little: size=tiny shows that, full what it costs
        Case(name="legal, tiny", options={**judgments, "size": "tiny", "subset": 1600, "epochs": 3}),
        Case(name="legal, full", options={**judgments, "size": "full", "subset": 80, "epochs": 1}, half_on_cpu=True),
        # Two updates an epoch of what matplotlib brings along, of which the second is timed
        *(
            Case(
                name=f"temporal, {architecture}",
                options={"architecture": architecture, "subset": 512, "epochs": epochs},
                half_on_cpu=architecture != "mlp",
            )
            for architecture, epochs in (("lstm", 20), ("transformer", 20), ("mlp", 100))
        ),
        Case(name="cloud, tiny", options={"size": "tiny", "epochs": 8}),
        Case(name="cloud, full", options={"size": "full", "subset": 12, "epochs": 1}, held_out=8, half_on_cpu=True),
        Case(name="vqa, tiny", options={"size": "tiny", "subset": 900, "epochs": 2}),
        # A minute an update in the guide's way: the second is timed, and nothing is learnt in two
        Case(name="vqa, full", options={"size": "full", "subset": 18, "epochs": 1}, held_out=18, half_on_cpu=True),
        # At 1e-5 nothing is learnt in so few updates
        Case(
            name="chart, tiny",
            options={
                "size": "tiny",
                "weights": "fp32",
                "completion_len": 48,
                "learning_rate": 1e-2,
                "subset": 40,
                "epochs": 2,
            },
            held_out=16,
            drawn=True,
        ),
        # Three updates of random weights: what they cost. A CPU would take minutes for a text
        Case(
            name="chart, full",
            options={"size": "full", "weights": "bf16", "completion_len": 128, "subset": 3, "epochs": 1},
            devices=("cuda",),
            held_out=16,
            drawn=True,
        ),
    ]
    return {case.name: case for case in every}
