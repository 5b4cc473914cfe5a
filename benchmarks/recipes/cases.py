"""What is trained in both ways: a recipe, its options, and how much."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Case:
    """One training. Its `options` are for both ways, `guide` for the guide's."""

    name: str
    recipe: str
    options: Mapping[str, Any]
    guide: Mapping[str, Any] = field(default_factory=dict)
    half_on_cpu: bool = False
    """Whether ours is trained in bf16 as well where a processor computes in it, as a GPU's plan chooses fp16."""
    devices: tuple[str, ...] = ("cpu", "cuda")
    held_out: int = 256
    """Validation samples at most that the loss after training is of."""
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
            options={**judgments, "size": "tiny", "subset": 1600, "epochs": 3},
            guide={"length": 512},
            goal=5,
        ),
        Case(
            name="legal, full",
            recipe="legal",
            options={**judgments, "size": "full", "subset": 80, "epochs": 1},
            guide={"length": 512},
            half_on_cpu=True,
            goal=5,
        ),
        # Two updates an epoch of what matplotlib brings along, of which the second is timed
        *(
            Case(
                name=f"temporal, {architecture}",
                recipe="temporal",
                options={"architecture": architecture, "subset": 512, "epochs": 100 if architecture == "mlp" else 20},
                guide={"workers": 2},
                half_on_cpu=architecture != "mlp",
                goal=5,
            )
            for architecture in ("lstm", "transformer", "mlp")
        ),
        Case(
            name="cloud, tiny",
            recipe="cloud",
            options={"size": "tiny", "epochs": 8},
            goal=1.5,
        ),
        Case(
            name="cloud, full",
            recipe="cloud",
            options={"size": "full", "subset": 12, "epochs": 1},
            held_out=8,
            half_on_cpu=True,
            goal=1.5,
        ),
        Case(
            name="vqa, tiny",
            recipe="vqa",
            options={"size": "tiny", "subset": 900, "epochs": 2},
            guide={"micro_batch": 3, "workers": 2},
            goal=2.5,
        ),
        # A minute an update in the guide's way: the second is timed, and nothing is learnt in two
        Case(
            name="vqa, full",
            recipe="vqa",
            options={"size": "full", "subset": 18, "epochs": 1},
            guide={"micro_batch": 3, "workers": 2},
            held_out=18,
            half_on_cpu=True,
            goal=2.5,
        ),
        # At 1e-5 nothing is learnt in so few updates, and random weights earn no reward of the seven: guides/chart.py
        Case(
            name="chart, tiny",
            recipe="chart",
            options={
                "size": "tiny",
                "weights": "fp32",
                "completion_len": 48,
                "learning_rate": 1e-2,
                "subset": 40,
                "epochs": 2,
            },
            guide={"micro_batch": 1},
            goal=1.5,
        ),
        # Three updates of random weights: what they cost. A CPU would take minutes for a text
        Case(
            name="chart, full",
            recipe="chart",
            options={"size": "full", "weights": "bf16", "completion_len": 128, "subset": 3, "epochs": 1},
            guide={"micro_batch": 1},
            devices=("cuda",),
            goal=1.5,
        ),
    ]
    return {case.name: case for case in every}
