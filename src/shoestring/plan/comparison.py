"""A comparison of the plans of one recipe for several targets."""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from shoestring import display
from shoestring.estimate.calibration import Calibration
from shoestring.hardware.catalog import Target
from shoestring.plan.plan import Plan, plan_with
from shoestring.plan.weight_type import with_weight_type
from shoestring.recipe.options import LoadedRecipe
from shoestring.settings import Settings
from shoestring.trace import Tracer


@dataclass(frozen=True, kw_only=True)
class Comparison(display.Displayed):
    """One plan for each target, in the requested order."""

    plans: tuple[Plan, ...]
    """The complete plans, in the same order."""
    by_hours: float | None = None
    """The hours within which the run has to be done; None without such a limit."""

    @property
    def cheapest(self) -> Plan | None:
        """The plan with the least cost that fits and is done in time, of equal costs the fastest; None without any."""
        plans = [plan for plan in self.plans if plan.fits and plan.cost_usd is not None and self._is_in_time(plan)]
        return min(plans, key=lambda plan: (plan.cost_usd, plan.calendar_hours), default=None)

    def _is_in_time(self, plan: Plan) -> bool:
        hours = plan.calendar_hours
        return hours is not None and (self.by_hours is None or hours <= self.by_hours)

    def rows(self) -> list[dict[str, Any]]:
        """Return the compared values of each plan; None for unknown ones."""
        return [_row(plan) for plan in self.plans]

    def json(self) -> dict[str, Any]:
        """Return the rows and the complete plans.

        Keys:
            comparison (list of objects): a row for each target, in the order of `--on`
            by (object or null): the answer to `--by`
            by.hours (number): the hours within which the run has to be done
            by.target (text or null): the cheapest target that does it
        """
        by = None
        if self.by_hours is not None:
            by = {"hours": self.by_hours, "target": self.cheapest.target.name if self.cheapest else None}
        return {"comparison": self.rows(), "by": by, "plans": [plan.json() for plan in self.plans]}

    def __repr__(self) -> str:
        verdicts = ", ".join(f"{plan.target.name} {plan.verdict}" for plan in self.plans)
        return f"<Comparison of {self.plans[0].recipe if self.plans else 'no plans'}: {verdicts}>"

    def __str__(self) -> str:
        """Return the table that `shoestring plan` prints for several targets."""
        return display.text(self)


def compare(
    loaded: LoadedRecipe,
    targets: Sequence[Target],
    requested: Settings,
    *,
    usd_per_hour: float | None = None,
    calibration: Calibration | None = None,
    by_hours: float | None = None,
) -> Comparison:
    """Make a thorough plan for each target. Raises what `make_plan` raises."""
    plans = []
    with ExitStack() as tracers:
        by_weights: dict[object, Tracer] = {}
        for target in targets:
            recipe = with_weight_type(loaded, target, requested)
            weights = recipe.options.get("weights")
            if weights not in by_weights:
                by_weights[weights] = tracers.enter_context(Tracer(recipe))
            plan = plan_with(
                by_weights[weights],
                recipe,
                target,
                requested,
                thorough=True,
                usd_per_hour=usd_per_hour,
                calibration=calibration,
            )
            plans.append(plan)
    return Comparison(plans=tuple(plans), by_hours=by_hours)


def _row(plan: Plan) -> dict[str, Any]:
    """Return the compared values of a plan.

    Keys:
        update_seconds (number or null): the predicted seconds of an update
        total_seconds (number or null): the predicted seconds of all updates
        calendar_hours (number or null): the hours from the start to the end, with waiting for the quota
        sessions (integer or null): the number of sessions
        weeks (integer or null): the number of weeks of the platform's quota
        usd_per_hour (number or null): the price of one GPU for an hour in US dollars
        price_date (text or null): the date of that price
    """
    predicted = plan.time.predicted
    return {
        "target": plan.target.name,
        "verdict": plan.verdict,
        "micro_batch": plan.settings.micro_batch,
        "precision": plan.settings.precision,
        "checkpointing": plan.settings.checkpointing,
        "high_bytes": plan.memory.high_bytes,
        "capacity_bytes": plan.memory.capacity_bytes,
        "update_seconds": predicted.update_seconds,
        "total_seconds": predicted.total_seconds,
        "hours": plan.hours,
        "calendar_hours": plan.calendar_hours,
        "sessions": len(plan.sessions) or None,
        "weeks": len(plan.weeks) or None,
        "usd": plan.cost_usd,
        "usd_per_hour": plan.price.usd_per_hour if plan.price else None,
        "price_date": plan.price.date if plan.price else None,
    }
