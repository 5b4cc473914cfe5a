"""The cases of the recipe benchmark: a recipe, its options, and the amount of training."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Case:
    """A training that runs as the guide does and with Shoestring, with the same `options`."""

    name: str
    """Starts with the name of the recipe."""
    options: Mapping[str, Any]
    half_on_cpu: bool = False
    """Whether Shoestring also trains in bf16 on CPUs that support it, as the plan for a GPU chooses fp16."""
    devices: tuple[str, ...] = ("cpu", "cuda")
    held_out: int = 256
    """The maximum number of validation samples that evaluate the model after training."""
    drawn: bool = False
    """Whether samples are drawn at their first access, which are files in the guide."""

    @property
    def recipe(self) -> str:
        return self.name.partition(",")[0]


def cases(law_ai: Path | None) -> dict[str, Case]:
    """Return the cases by name, with real judgments if their directory is given."""
    judgments: dict[str, Any] = {} if law_ai is None else {"data": law_ai, "roles": "law-ai"}
    all_cases = [
        # BERT learns little from random weights with so few samples: size=tiny compares the learning, full the cost
        Case(name="legal, tiny", options={**judgments, "size": "tiny", "subset": 1600, "epochs": 3}),
        Case(name="legal, full", options={**judgments, "size": "full", "subset": 80, "epochs": 1}, half_on_cpu=True),
        # Two updates per epoch on the data included in matplotlib; the second is timed
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
        # The guide takes a minute per update: the second is timed, and two updates do not improve the model
        Case(name="vqa, full", options={"size": "full", "subset": 18, "epochs": 1}, held_out=18, half_on_cpu=True),
        # With 1e-5 the model does not improve in so few updates
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
        # Three updates of random weights measure the cost. A CPU would take minutes per text
        Case(
            name="chart, full",
            options={"size": "full", "weights": "bf16", "completion_len": 128, "subset": 3, "epochs": 1},
            devices=("cuda",),
            held_out=16,
            drawn=True,
        ),
    ]
    return {case.name: case for case in all_cases}
