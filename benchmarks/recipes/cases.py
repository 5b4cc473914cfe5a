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
        # Two updates an epoch of what matplotlib brings along, of which the second is timed
        *(
            Case(
                name=f"temporal, {architecture}{', by hand' if settings else ''}",
                recipe="temporal",
                options={"architecture": architecture, "subset": 512, "epochs": 100 if architecture == "mlp" else 20},
                guide={"workers": 2},
                settings=settings,
                devices=("cpu",) if settings else ("cpu", "cuda"),
                goal=5,
            )
            for architecture, by_hand in {
                # A microbatch in the caches, and matrix units that the plan does not know of
                "lstm": {"precision": "bf16", "micro_batch": 64},
                "transformer": {"precision": "bf16", "micro_batch": 64},
                "mlp": {"optimizer_kernel": "fused"},
            }.items()
            for settings in ({}, by_hand)
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
            options={"size": "full", "subset": 16, "epochs": 1},
            goal=1.5,
        ),
        # The guide in fp32 and ours in half precision, as the plan chooses it on a GPU that has it
        Case(
            name="cloud, full, bf16",
            recipe="cloud",
            options={"size": "full", "subset": 16, "epochs": 1},
            settings={"precision": "bf16"},
            devices=("cpu",),
            goal=1.5,
        ),
        Case(
            name="vqa, tiny",
            recipe="vqa",
            options={"size": "tiny", "subset": 900, "epochs": 2},
            guide={"micro_batch": 3, "workers": 2},
            goal=2.5,
        ),
        # A minute an update in the guide's way: the second and the third are timed, and nothing is learnt in three
        Case(
            name="vqa, full",
            recipe="vqa",
            options={"size": "full", "subset": 27, "epochs": 1},
            guide={"micro_batch": 3, "workers": 2},
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
