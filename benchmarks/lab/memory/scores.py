"""The errors of predicted memory, their percentiles, and whether they are small enough."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.lab.memory.configurations import Configuration
from benchmarks.percentiles import percentile

QUANTITIES = ("allocated", "reserved", "loading")
"""Allocated and reserved at most, and reserved at most while the model is loaded."""

GOALS = {("allocated", 0.95): 0.01, ("reserved", 0.5): 0.02, ("reserved", 0.95): 0.06}
"""The largest error at a percentile, as a share of the measured bytes."""

GOAL_OF_HIGH_ENDS = 0.99
"""The least share of the rows whose reserved memory is at most the high end of its range."""


@dataclass(frozen=True, kw_only=True)
class Score:
    """A configuration with its measured and estimated bytes, or the reason why there are none."""

    id: str
    kind: str
    measured: Mapping[str, int] = field(default_factory=dict)
    """By quantity."""
    estimate: Mapping[str, int] = field(default_factory=dict)
    """The expected bytes, by quantity, and the `high` end of those reserved."""
    skipped: str = ""

    def error(self, quantity: str) -> float:
        """The relative error, positive for overestimates."""
        return self.estimate[quantity] / self.measured[quantity] - 1

    @property
    def holds(self) -> bool:
        """Whether the high end holds."""
        return self.measured["reserved"] <= self.estimate["high"]

    def describe(self) -> str:
        if self.skipped:
            return f"{self.id}: skipped, {self.skipped}"
        errors = ", ".join(f"{name} {self.error(name):+.2%}" for name in QUANTITIES)
        return f"{self.id}: {errors}{'' if self.holds else ', ABOVE THE HIGH END'}"

    def json(self) -> dict[str, Any]:
        if self.skipped:
            return {"id": self.id, "kind": self.kind, "skipped": self.skipped}
        return {"id": self.id, "kind": self.kind, "measured": dict(self.measured), "estimate": dict(self.estimate)}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "Score":
        return cls(**values)


def score(configuration: Configuration, measured: Mapping[str, Any], estimate: Mapping[str, Any]) -> Score:
    """Return the score of a configuration from the answers of both sides."""
    errors = [
        f"{side}: {answer['error']}"
        for side, answer in (("measured", measured), ("estimate", estimate))
        if "error" in answer
    ]
    if errors:
        return Score(id=configuration.id, kind=configuration.kind, skipped="; ".join(errors))
    expected = {name: estimate[name]["value"] for name in ("allocated", "reserved")}
    return Score(
        id=configuration.id,
        kind=configuration.kind,
        measured={name: measured[name] for name in QUANTITIES},
        estimate={**expected, "loading": estimate["loading"], "high": estimate["reserved"]["high"]},
    )


def errors_at(scores: Sequence[Score], quantity: str, *shares: float) -> list[float]:
    """Return the percentiles of the sizes of the relative errors."""
    sizes = [abs(score.error(quantity)) for score in scores]
    return [percentile(sizes, share) for share in shares]


def share_held(scores: Sequence[Score]) -> float:
    return sum(score.holds for score in scores) / len(scores)


def problems(scores: Sequence[Score]) -> Iterator[str]:
    """Yield each goal that the scores miss."""
    for (quantity, share), goal in GOALS.items():
        (error,) = errors_at(scores, quantity, share)
        if error > goal:
            yield f"{quantity} at {share:.0%}: {error:.2%}, more than {goal:.0%}"
    if (held := share_held(scores)) < GOAL_OF_HIGH_ENDS:
        yield f"the high end holds {held:.1%}, less than {GOAL_OF_HIGH_ENDS:.0%}"


def worst(scores: Sequence[Score], count: int = 10) -> list[Score]:
    """Return the scores with the largest errors, each in proportion to what is permitted at 95%."""
    return sorted(
        (score for score in scores if not score.skipped),
        key=lambda score: -max(abs(score.error(name)) / GOALS[name, 0.95] for name in ("allocated", "reserved")),
    )[:count]


def by_kind(scores: Sequence[Score]) -> dict[str, list[Score]]:
    """Return the scores that are not skipped by kind, and those of all kinds as `all`."""
    groups: dict[str, list[Score]] = {}
    for item in scores:
        if not item.skipped:
            groups.setdefault(item.kind, []).append(item)
    return {**groups, "all": [item for item in scores if not item.skipped]}


def describe(scores: Sequence[Score]) -> str:
    """Return the table of kinds and the worst rows, for a terminal."""
    lines = [
        f"{'kind':24}{'n':>4}{'allocated: p50':>16}{'p95':>8}{'max':>8}{'reserved: p50':>15}{'p95':>8}{'max':>8}"
        f"{'loading: p95':>14}{'high holds':>12}"
    ]
    for kind, group in by_kind(scores).items():
        if group:
            allocated, reserved = (errors_at(group, name, 0.5, 0.95, 1.0) for name in ("allocated", "reserved"))
            (loading,) = errors_at(group, "loading", 0.95)
            values = [*(f"{value:.2%}" for value in (*allocated, *reserved, loading)), f"{share_held(group):.1%}"]
            widths = (16, 8, 8, 15, 8, 8, 14, 12)
            texts = (f"{value:>{width}}" for value, width in zip(values, widths, strict=True))
            lines.append(f"{kind:24}{len(group):>4}{''.join(texts)}")
    lines += ["worst:", *(f"  {item.describe()}" for item in worst(scores, 25))]
    lines += [f"  {item.describe()}" for item in scores if item.skipped]
    lines += [f"MISSED: {problem}" for problem in problems([item for item in scores if not item.skipped])]
    return "\n".join(lines)
